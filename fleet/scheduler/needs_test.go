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

func names(objects []object) string {
	out := []string{}
	for _, o := range objects {
		out = append(out, o.Kind+"/"+o.Name)
	}
	return fmt.Sprint(out)
}

func TestNeedsBothWays(t *testing.T) {
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
	needing := func(o ...object) statement { return statement{needs: o} }
	want("new needs", names(n.set(web, needing(conf, key))), "[ConfigMap/conf Secret/key]")
	want("the same again", names(n.set(web, needing(key, conf))), "[]")
	want("another user", names(n.set(api, needing(conf, conf))), "[ConfigMap/conf]")
	want("users", names(n.by(conf)), "[Deployment/api Deployment/web]")
	want("needs", names(n.of(web)), "[ConfigMap/conf Secret/key]")
	want("one need less", names(n.set(web, needing(key))), "[ConfigMap/conf]")
	want("users then", names(n.by(conf)), "[Deployment/api]")
	want("a user goes", names(n.set(api, statement{})), "[ConfigMap/conf]")
	want("nobody", names(n.by(conf)), "[]")

	want("who follows is looked at itself, and whom it follows", names(n.set(front, statement{follows: []object{service}, needs: []object{key}})), "[Secret/key Service/web Ingress/front]")
	want("who it follows is its user", names(n.by(front)), "[Service/web]")
	want("and it is needed there", names(n.of(service)), "[Ingress/front]")
	want("both say so", names(n.set(service, needing(front))), "[Ingress/front]")
	want("it follows no longer", names(n.set(front, statement{})), "[Secret/key Service/web Ingress/front]")
	want("one of them still says so", names(n.by(front)), "[Service/web]")
	n.set(service, statement{})
	n.set(web, statement{})
	if len(n.needed)+len(n.users)+len(n.said) != 0 {
		t.Errorf("what is over is remembered: %v %v %v", n.needed, n.users, n.said)
	}
}

func TestSelectorsBothWays(t *testing.T) {
	n := newNeeds()
	web, api := ref("Deployment", "web"), ref("Deployment", "api")
	service, quota := ref("Service", "web"), ref("ResourceQuota", "all")
	selecting := func(s string) statement {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return statement{selects: []selection{{"shop", parsed}}}
	}
	making := func(l string) statement {
		set, err := labels.ConvertSelectorToLabelsMap(l)
		if err != nil {
			t.Fatal(err)
		}
		return statement{pods: set}
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("a selector", names(n.set(service, selecting("app=web,tier!=back"))), "[Service/web]")
	n.set(quota, statement{selects: []selection{{"shop", labels.Everything()}}})
	want("a workload", names(sortedNames(n.set(web, making("app=web")))), "[ResourceQuota/all Service/web]")
	want("without labels", names(n.set(api, statement{pods: map[string]string{}})), "[ResourceQuota/all]")
	want("what follows", names(n.of(web)), "[ResourceQuota/all Service/web]")
	want("users of one", names(n.by(service)), "[Deployment/web]")
	want("users of all", names(n.by(quota)), "[Deployment/api Deployment/web]")
	want("labels that no longer match", names(n.set(web, making("app=web,tier=back"))), "[Service/web]")
	want("no user", names(n.by(service)), "[]")
	want("another selector", names(n.set(service, selecting("tier in (back,front)"))), "[Service/web]")
	want("matches again", names(n.by(service)), "[Deployment/web]")
	other := object{web.GroupKind, types.NamespacedName{Namespace: "other", Name: "web"}}
	want("another namespace", names(n.set(other, making("app=web,tier=back"))), "[]")
	for _, o := range []object{web, api, other, service, quota} {
		n.set(o, statement{})
	}
	if len(n.said)+len(n.picks.workloads)+len(n.picks.followers) != 0 {
		t.Errorf("what is over is remembered: %v %v", n.said, n.picks)
	}
}

func sortedNames(objects []object) []object {
	return slices.SortedFunc(slices.Values(objects), func(a, b object) int { return strings.Compare(a.Kind, b.Kind) })
}
