// Command kuberouter is the part of kube-router that enforces NetworkPolicies, with iptables and ipset.
//
// Its own main has a router and a service proxy as well, which tests do not need and which take long to build.
package main

import (
	"flag"
	"log"
	"sync"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
)

// What nothing tells it about is looked for this often.
const period = time.Minute

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the way to the API server")
	node := flag.String("node", "", "the node whose pods are kept apart")
	services := flag.String("services", "", "the addresses of Services")
	flag.Parse()
	log.Fatal(run(*kubeconfig, *node, *services))
}

func run(kubeconfig, node, services string) error {
	access, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	settings := options.NewKubeRouterConfig()
	settings.ClusterIPCIDRs = []string{services}
	settings.EnableIPv4 = true
	settings.HostnameOverride = node
	settings.IPTablesSyncPeriod = period
	tables, sets, err := netpol.NewIPTablesHandlers(settings)
	if err != nil {
		return err
	}
	seen := informers.NewSharedInformerFactory(client, 0)
	pods := seen.Core().V1().Pods().Informer()
	policies := seen.Networking().V1().NetworkPolicies().Informer()
	namespaces := seen.Core().V1().Namespaces().Informer()
	controller, err := netpol.NewNetworkPolicyController(
		client, settings, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
		namespaces: controller.NamespaceEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	stop := make(chan struct{}) // Never closed: it ends with the cluster.
	seen.Start(stop)
	seen.WaitForCacheSync(stop)
	beats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range beats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(beats, stop, &running)
	return nil
}
