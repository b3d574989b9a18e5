// Kueue's queues, scheduler, controllers and webhooks, without what it has for the kinds of jobs of others.
//
// Its own main reads certificates for metrics from a folder of the system, which tests do not touch,
// and knows a dozen kinds of jobs, which tests do not need.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueuealpha "sigs.k8s.io/kueue/apis/kueue/v1alpha1"
	older "sigs.k8s.io/kueue/apis/kueue/v1beta1"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/config"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/metrics"
	"sigs.k8s.io/kueue/pkg/resources"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
	"sigs.k8s.io/kueue/pkg/webhooks"
)

func main() {
	file := flag.String("config", "", "Kueue's configuration")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(*file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(file string) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueue.AddToScheme, older.AddToScheme, kueuealpha.AddToScheme,
		configapi.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	options, settings, err := config.Load(scheme, file)
	if err != nil {
		return err
	}
	if err := config.AddWebhookSettingsTo(&options, &settings); err != nil {
		return err
	}
	options.Metrics.BindAddress = "0"
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), options)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := indexer.Setup(ctx, manager.GetFieldIndexer()); err != nil {
		return err
	}
	metrics.Register()
	cache := schdcache.New(manager.GetClient())
	requeuer := qcache.NewRequeuer()
	preemptions := expectations.New()
	queues := qcache.NewManager(
		manager.GetClient(), cache, requeuer, qcache.WithPreemptionExpectations(preemptions),
	)
	controllers := core.SetupControllersOpts{
		PreemptionExpectations: preemptions, ResourceFormatter: resources.NewResourceFormatter(),
	}
	if failed, err := core.SetupControllers(manager, queues, cache, &settings, controllers); err != nil {
		return fmt.Errorf("controller %s: %w", failed, err)
	}
	if failed, err := webhooks.Setup(manager, nil); err != nil {
		return fmt.Errorf("webhook %s: %w", failed, err)
	}
	recorder := manager.GetEventRecorder(constants.AdmissionName)
	admission := scheduler.New(
		queues, cache, manager.GetClient(), recorder,
		scheduler.WithPreemptionExpectations(preemptions),
	)
	for _, part := range []ctrlmanager.Runnable{requeuer, admission} {
		if err := manager.Add(part); err != nil {
			return err
		}
	}
	if err := manager.AddReadyzCheck("readyz", manager.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	return manager.Start(ctx)
}
