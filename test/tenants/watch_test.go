package tenants

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// watchOverSleep checks that a workspace does not fall asleep while a client watches it. After a sleep, watches continue at the position of
// a list or an event from before it, and have each event once, in order.
func watchOverSleep(t *testing.T, api *caller) {
	t.Helper()
	_, config := api.present()
	in := rest.CopyConfig(config)
	in.Host += "/clusters/" + name(0)
	client, err := kubernetes.NewForConfig(in)
	if err != nil {
		t.Fatal(err)
	}
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	position := list.ResourceVersion
	asleep(t, api)
	var want, got []string
	create := func(object string) {
		t.Helper()
		api.must(t, http.MethodPost, "/clusters/"+name(0)+"/api/v1/namespaces/default/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+object+`"}}`)
		want = append(want, object)
	}
	for round := range 2 {
		create(fmt.Sprintf("after-sleep-%d", round)) // it wakes, without a watch
		asleep(t, api)
		events, err := client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: position})
		if err != nil {
			t.Fatal(err)
		}
		read := func() {
			for len(got) < len(want) {
				object, version := next(t, events)
				got, position = append(got, object), version
			}
		}
		create(fmt.Sprintf("while-awake-%d", round))
		read()
		if round == 0 { // another workspace falls asleep, although it was used later
			api.must(t, http.MethodGet, "/clusters/"+name(1)+"/api/v1/namespaces/default", "")
			asleepBut(t, api, 1)
			if open, err := api.gauge(t.Context(), "atoll_tenancy_workspaces_awake"); err != nil || open != 1 {
				t.Errorf("%.0f workspaces are open, %v; want the one with a watch", open, err)
			}
			create("watched")
			read()
		}
		events.Stop()
	}
	if !slices.Equal(got, want) {
		t.Errorf("the watches had %v, want %v", got, want)
	}
}

// next returns the name and the version of the next object that a watch has.
func next(t *testing.T, events watch.Interface) (object, version string) {
	t.Helper()
	select {
	case e, ok := <-events.ResultChan():
		o, isMap := e.Object.(*corev1.ConfigMap)
		if !ok || !isMap || e.Type != watch.Added {
			t.Fatalf("the watch has %+v", e)
		}
		return o.Name, o.ResourceVersion
	case <-time.After(settle):
		t.Fatal("the watch has no event")
	}
	return "", ""
}
