// Command probe is the whole content of the image that the cluster's own tests run in pods.
//
//	probe say TEXT...        print the text and end
//	probe serve PORT         answer HTTP with this pod's host name
//	probe resolve NAME       print the addresses of a name, waiting until there are some
//	probe get URL            print what a URL answers, waiting until it does
//	probe api PATH           the same for the cluster's API server, as this pod's service account
package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const (
	patience    = 60 * time.Second
	credentials = "/var/run/secrets/kubernetes.io/serviceaccount/"
	apiServer   = "https://kubernetes.default.svc.cluster.local"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: probe say|serve|resolve|get|api ARGUMENT")
	}
	argument := os.Args[2]
	switch os.Args[1] {
	case "say":
		fmt.Println(strings.Join(os.Args[2:], " "))
	case "serve":
		serve(argument)
	case "resolve":
		fmt.Println(retry(func() (string, error) { return resolve(argument) }))
	case "get":
		fmt.Println(retry(func() (string, error) { return get(http.DefaultClient, argument, "") }))
	case "api":
		fmt.Println(retry(func() (string, error) { return api(argument) }))
	default:
		log.Fatalf("unknown command %q", os.Args[1])
	}
}

func serve(port string) {
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) { fmt.Fprintln(answer, name) })
	log.Fatal(http.ListenAndServe(":"+port, nil))
}

func resolve(name string) (string, error) {
	addresses, err := net.LookupHost(name)
	return strings.Join(addresses, " "), err
}

func api(path string) (string, error) {
	token, err := os.ReadFile(credentials + "token")
	if err != nil {
		return "", err
	}
	authority, err := os.ReadFile(credentials + "ca.crt")
	if err != nil {
		return "", err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
	return get(client, apiServer+path, string(token))
}

func get(client *http.Client, url, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%d %s", answer.StatusCode, strings.TrimSpace(string(body))), err
}

func retry(attempt func() (string, error)) string {
	deadline := time.Now().Add(patience)
	for {
		result, err := attempt()
		if err == nil {
			return result
		}
		if time.Now().After(deadline) {
			log.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
