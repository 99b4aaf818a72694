package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

func ref(kind, name string) object {
	return object{schema.GroupKind{Kind: kind}, types.NamespacedName{Namespace: "shop", Name: name}}
}

func listed(objects []object) string {
	out := []string{}
	for _, o := range objects {
		out = append(out, o.Kind+"/"+o.Name)
	}
	return fmt.Sprint(out)
}

func TestDependenciesInBothDirections(t *testing.T) {
	n := newNeeds()
	web, api := ref("Deployment", "web"), ref("Deployment", "api")
	conf, key := ref("ConfigMap", "conf"), ref("Secret", "key")
	front := ref("Ingress", "front")
	service := ref("Service", "web")
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	needing := func(o ...object) dependencies { return dependencies{needs: o} }
	want("new needs", listed(n.set(web, needing(conf, key))), "[ConfigMap/conf Secret/key]")
	want("the same needs", listed(n.set(web, needing(key, conf))), "[]")
	want("another user", listed(n.set(api, needing(conf, conf))), "[ConfigMap/conf]")
	want("users", listed(n.usersOf(conf)), "[Deployment/api Deployment/web]")
	want("needs", listed(n.neededBy(web)), "[ConfigMap/conf Secret/key]")
	want("one need removed", listed(n.set(web, needing(key))), "[ConfigMap/conf]")
	want("users after that", listed(n.usersOf(conf)), "[Deployment/api]")
	want("a user is removed", listed(n.set(api, dependencies{})), "[ConfigMap/conf]")
	want("no users", listed(n.usersOf(conf)), "[]")

	want("a new follower and its users are affected", listed(n.set(front, dependencies{follows: []object{service}, needs: []object{key}})), "[Secret/key Service/web Ingress/front]")
	want("the followed object is its user", listed(n.usersOf(front)), "[Service/web]")
	want("the follower is needed by it", listed(n.neededBy(service)), "[Ingress/front]")
	want("both declare it", listed(n.set(service, needing(front))), "[Ingress/front]")
	want("the follower no longer declares it", listed(n.set(front, dependencies{})), "[Secret/key Service/web Ingress/front]")
	want("the user still declares it", listed(n.usersOf(front)), "[Service/web]")
	n.set(service, dependencies{})
	n.set(web, dependencies{})
	if len(n.needed)+len(n.users)+len(n.declared) != 0 {
		t.Errorf("stale dependencies are left: %v %v %v", n.needed, n.users, n.declared)
	}
}

func TestSelectorsInBothDirections(t *testing.T) {
	n := newNeeds()
	web, api := ref("Deployment", "web"), ref("Deployment", "api")
	service, quota := ref("Service", "web"), ref("ResourceQuota", "all")
	selecting := func(s string) dependencies {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return dependencies{selects: []selection{{"shop", parsed}}}
	}
	making := func(l string) dependencies {
		set, err := labels.ConvertSelectorToLabelsMap(l)
		if err != nil {
			t.Fatal(err)
		}
		return dependencies{pods: set}
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("a selector", listed(n.set(service, selecting("app=web,tier!=back"))), "[Service/web]")
	n.set(quota, dependencies{selects: []selection{{"shop", labels.Everything()}}})
	want("a workload", listed(sortedNames(n.set(web, making("app=web")))), "[ResourceQuota/all Service/web]")
	want("without labels", listed(n.set(api, dependencies{pods: map[string]string{}})), "[ResourceQuota/all]")
	want("what follows", listed(n.neededBy(web)), "[ResourceQuota/all Service/web]")
	want("users of one", listed(n.usersOf(service)), "[Deployment/web]")
	want("users of all", listed(n.usersOf(quota)), "[Deployment/api Deployment/web]")
	want("labels that no longer match", listed(n.set(web, making("app=web,tier=back"))), "[Service/web]")
	want("no user", listed(n.usersOf(service)), "[]")
	want("another selector", listed(n.set(service, selecting("tier in (back,front)"))), "[Service/web]")
	want("matches again", listed(n.usersOf(service)), "[Deployment/web]")
	other := object{web.GroupKind, types.NamespacedName{Namespace: "other", Name: "web"}}
	want("another namespace", listed(n.set(other, making("app=web,tier=back"))), "[]")
	for _, o := range []object{web, api, other, service, quota} {
		n.set(o, dependencies{})
	}
	if len(n.declared)+len(n.selectors.workloads)+len(n.selectors.followers) != 0 {
		t.Errorf("stale selectors are left: %v %v", n.declared, n.selectors)
	}
}

func sortedNames(objects []object) []object {
	return slices.SortedFunc(slices.Values(objects), func(a, b object) int { return strings.Compare(a.Kind, b.Kind) })
}
