package scheduler

import (
	"fmt"
	"testing"

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
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	want("new needs", names(n.set(web, []object{conf, key})), "[ConfigMap/conf Secret/key]")
	want("the same again", names(n.set(web, []object{key, conf})), "[]")
	want("another user", names(n.set(api, []object{conf, conf})), "[ConfigMap/conf]")
	want("users", names(n.by(conf)), "[Deployment/api Deployment/web]")
	want("needs", names(n.of(web)), "[ConfigMap/conf Secret/key]")
	want("one need less", names(n.set(web, []object{key})), "[ConfigMap/conf]")
	want("users then", names(n.by(conf)), "[Deployment/api]")
	want("a user goes", names(n.set(api, nil)), "[ConfigMap/conf]")
	want("nobody", names(n.by(conf)), "[]")
	n.set(web, nil)
	if len(n.needed)+len(n.users) != 0 {
		t.Errorf("what is over is remembered: %v %v", n.needed, n.users)
	}
}
