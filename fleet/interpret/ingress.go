package interpret

import (
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func ingressClassNeeds(obj *unstructured.Unstructured, out *refs) error {
	p := object(obj.Object, "spec", "parameters")
	out.add(refer(text(p, "apiGroup"), text(p, "kind"), text(p, "namespace"), text(p, "name")))
	return nil
}

func ingressNeeds(obj *unstructured.Unstructured, out *refs) error {
	class := text(obj.Object, "spec", "ingressClassName")
	if class == "" {
		class = obj.GetAnnotations()["kubernetes.io/ingress.class"]
	}
	out.global(networkingGroup, "IngressClass", class)
	for _, tls := range items(obj.Object, "spec", "tls") {
		out.core("Secret", text(tls, "secretName"))
	}
	annotations := obj.GetAnnotations()
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		_, what, _ := strings.Cut(key, "/")
		switch what {
		case "auth-secret", "auth-tls-secret", "proxy-ssl-secret":
			// Several ingress controllers use these names. A Secret in another namespace is placed
			// by its owner.
			out.core("Secret", strings.TrimPrefix(annotations[key], obj.GetNamespace()+"/"))
		}
	}
	return nil
}

func ingressFollows(obj *unstructured.Unstructured, out *attachments) error {
	backend := func(b map[string]any) {
		out.core("Service", text(b, "service", "name"))
		out.here(text(b, "resource", "apiGroup"), text(b, "resource", "kind"), text(b, "resource", "name"))
	}
	backend(object(obj.Object, "spec", "defaultBackend"))
	for _, rule := range items(obj.Object, "spec", "rules") {
		for _, path := range items(rule, "http", "paths") {
			backend(object(path, "backend"))
		}
	}
	return nil
}

// aggregateIngress lists the addresses of every cluster with a fresh report: all of them lead to
// the application.
func aggregateIngress(_ KindInfo, _ *unstructured.Unstructured, members []MemberStatus) (map[string]any, error) {
	reports, err := decode[networkingv1.IngressStatus](members)
	if err != nil {
		return nil, err
	}
	var out networkingv1.IngressStatus
	for i, r := range reports {
		if members[i].Stale == "" {
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, r.LoadBalancer.Ingress...)
		}
	}
	return encode(&out)
}
