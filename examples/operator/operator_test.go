package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestDivide(t *testing.T) {
	type shares = map[string]int32
	for _, tc := range []struct {
		name      string
		replicas  int32
		clusters  []string
		has, want shares
	}{
		{"evenly", 6, []string{"west", "east", "north"}, nil, shares{"east": 2, "west": 2, "north": 2}},
		{"remainder by name at first", 8, []string{"west", "east", "north"}, nil, shares{"east": 3, "north": 3, "west": 2}},
		{"remainder stays", 4, []string{"east", "west", "north"}, shares{"east": 1, "west": 2, "north": 1}, shares{"east": 1, "west": 2, "north": 1}},
		{"cluster gone", 6, []string{"east", "north"}, shares{"east": 2, "west": 2, "north": 2}, shares{"east": 3, "north": 3}},
		{"new cluster", 4, []string{"east", "west"}, shares{"east": 4}, shares{"east": 2, "west": 2}},
		{"fewer replicas than clusters", 1, []string{"east", "west"}, shares{"west": 1}, shares{"east": 0, "west": 1}},
		{"none", 0, []string{"east"}, shares{"east": 3}, shares{"east": 0}},
	} {
		if got := Divide(tc.replicas, tc.clusters, tc.has); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// leases is a fake client with the calls that Clusters makes.
type leases struct {
	client.Client
	versions map[string]int
	fails    error
}

func (l *leases) Apply(context.Context, runtime.ApplyConfiguration, ...client.ApplyOption) error {
	l.versions["east"]++
	return l.fails
}

func (l *leases) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	for name, version := range l.versions {
		lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: "cluster-" + name, Labels: map[string]string{clusterLabel: name}, ResourceVersion: strconv.Itoa(version),
		}}
		lease.Spec.RenewTime = &metav1.MicroTime{} // from a clock that is decades behind
		into.(*coordinationv1.LeaseList).Items = append(into.(*coordinationv1.LeaseList).Items, lease)
	}
	return nil
}

func TestClustersWithoutLeaseRenewalAreDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &leases{versions: map[string]int{"east": 1, "west": 1}}
		c := &Clusters{Client: server, self: "east"}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = c.Start(ctx) }()
		want := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			got := slices.Clone(*c.alive.Load())
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %v are alive, want %v", when, got, want)
			}
		}
		want("at first", "east", "west")
		time.Sleep(aliveTimeout - renewPeriod)
		want("west is late", "east", "west")
		time.Sleep(2 * renewPeriod)
		want("west is too late", "east")
		server.versions["west"]++
		time.Sleep(renewPeriod)
		want("west is back", "east", "west")
		server.fails = errors.New("no route to host")
		time.Sleep(renewPeriod)
		want("this cluster cannot renew its lease")
		server.fails = nil
		time.Sleep(renewPeriod)
		want("it can renew again", "east", "west")
	})
}

// TestCodeSize checks the size of the code that the README states.
func TestCodeSize(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				count++
			}
		}
	}
	if count == 0 || count >= 300 {
		t.Errorf("the operator has %d lines, not less than 300", count)
	}
}

func TestLocalCreatesDeployment(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(appVersion, &App{}, &AppList{})
	metav1.AddToGroupVersion(scheme, appVersion)
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	app := &App{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}}
	app.Spec.Image, app.Spec.Replicas, app.Spec.Assignments = "nginx", 5, map[string]int32{"east": 2, "west": 3}
	foreign := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}

	own := foreign.DeepCopy()
	own.Spec.Replicas, own.OwnerReferences = new(int32(4)), []metav1.OwnerReference{{UID: app.UID, Controller: new(true)}}

	for _, tc := range []struct {
		name, cluster string
		there         client.Object
		replicas      int32
		message       string
	}{
		{name: "no Deployment yet", cluster: "west", replicas: 3},
		{name: "own Deployment with other replicas", cluster: "west", there: own, replicas: 3},
		{name: "cluster without an assignment", cluster: "north", there: own, replicas: 4},
		{name: "foreign Deployment", cluster: "west", there: foreign, message: "rename one of them"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			there := []client.Object{app.DeepCopyObject().(*App)}
			if tc.there != nil {
				there = append(there, tc.there)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(there...).WithStatusSubresource(&App{}).Build()
			_, err := (&Local{c, tc.cluster}).Reconcile(t.Context(), app)
			if refused := err != nil; refused != (tc.message != "") {
				t.Error(err)
			}
			d, got := &appsv1.Deployment{}, &App{}
			if err := errors.Join(c.Get(t.Context(), client.ObjectKeyFromObject(app), d), c.Get(t.Context(), client.ObjectKeyFromObject(app), got)); err != nil {
				t.Fatal(err)
			}
			if status, ok := got.Status.Clusters[tc.cluster]; !ok || len(got.Status.Clusters) != 1 || !strings.Contains(status.Message, tc.message) {
				t.Errorf("status %+v", got.Status)
			}
			if tc.message == "" && (*d.Spec.Replicas != tc.replicas || !metav1.IsControlledBy(d, app)) {
				t.Errorf("deployment %+v", d)
			}
		})
	}
}
