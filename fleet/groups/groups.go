// Package groups finds the objects of a namespace that have to run in the same cluster, and why.
//
// Some objects are parts of one whole: the Jobs that one controller makes, the pods that mount one
// volume, pods that address each other by the names of a headless Service. Placed one by one they
// would be scattered, and each would work alone with an empty volume. An Index has the facts about
// the objects, and returns the group of each.
//
// It is pure: the same facts give the same groups. DESIGN.md explains the choices.
package groups

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// Facts are the properties of an object that can join it to others.
type Facts struct {
	// Placed objects run in clusters by decisions of their own. Others only connect: an owner that is
	// owned itself.
	Placed bool
	// UID is the object's own, by which its children name it.
	UID types.UID
	// Owner is its controller.
	Owner     types.UID
	OwnerName string // "Train t"
	// Label is the value of its label fleet.atoll.dev/group.
	Label string
	// Subdomain is the headless Service through which its pods have names.
	Subdomain string
	// Claims are the claims that its pods mount.
	Claims []string
	// Templates are the names of the claims that it creates, without the ordinals: "data-db" for
	// data-db-0.
	Templates []string
	// Pods are the labels of its pods; nil if it creates none.
	Pods map[string]string
	// Affinity are the pods without which its pods cannot run, term by term.
	Affinity []labels.Selector
	// Pinned: a label of its own names its cluster, so it does not go where its siblings go.
	Pinned bool
}

// Read returns the facts about an object. pods are the labels of its pods, and pod is their spec; both
// are nil if it creates none.
func Read(obj *unstructured.Unstructured, placed bool, pods map[string]string, pod map[string]any) Facts {
	f := Facts{Placed: placed, UID: obj.GetUID(), Label: obj.GetLabels()[v1alpha1.GroupLabel], Pods: pods, Pinned: obj.GetLabels()[v1alpha1.ClusterLabel] != ""}
	if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
		f.Owner, f.OwnerName = owner.UID, owner.Kind+" "+owner.Name
	}
	f.Subdomain, _, _ = unstructured.NestedString(pod, "subdomain")
	if service, _, _ := unstructured.NestedString(obj.Object, "spec", "serviceName"); pod != nil && f.Subdomain == "" {
		f.Subdomain = service
	}
	f.Mount(pod)
	templates, _, _ := unstructured.NestedFieldNoCopy(obj.Object, "spec", "volumeClaimTemplates")
	list, _ := templates.([]any)
	for _, t := range list {
		if name, _, _ := unstructured.NestedString(asMap(t), "metadata", "name"); name != "" {
			f.Templates = append(f.Templates, name+"-"+obj.GetName())
		}
	}
	f.Affinity = requiredAffinity(pod, obj.GetNamespace())
	return f
}

// Mount adds the claims that a pod mounts.
func (f *Facts) Mount(pod map[string]any) {
	volumes, _ := pod["volumes"].([]any)
	for _, v := range volumes {
		if claim, _, _ := unstructured.NestedString(asMap(v), "persistentVolumeClaim", "claimName"); claim != "" && !slices.Contains(f.Claims, claim) {
			f.Claims = append(f.Claims, claim)
		}
	}
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// requiredAffinity returns the terms of a pod's required affinity that are about pods of its own
// namespace. Clusters have their own nodes and zones, so pods that have to share one share a cluster.
func requiredAffinity(pod map[string]any, namespace string) (out []labels.Selector) {
	found, _, _ := unstructured.NestedFieldNoCopy(pod, "affinity", "podAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
	terms, _ := found.([]any)
	for _, t := range terms {
		term := asMap(t)
		named, _, _ := unstructured.NestedStringSlice(term, "namespaces")
		if len(named) > 0 && !slices.Contains(named, namespace) || len(named) == 0 && term["namespaceSelector"] != nil {
			continue
		}
		if s := selectorOf(asMap(term["labelSelector"])); s != nil && !s.Empty() {
			out = append(out, s)
		}
	}
	return out
}

// selectorOf reads a label selector, nil if it is invalid: the API server rejects those.
func selectorOf(m map[string]any) labels.Selector {
	var s metav1.LabelSelector
	s.MatchLabels, _, _ = unstructured.NestedStringMap(m, "matchLabels")
	found, _ := m["matchExpressions"].([]any)
	for _, e := range found {
		r := metav1.LabelSelectorRequirement{}
		r.Key, _, _ = unstructured.NestedString(asMap(e), "key")
		operator, _, _ := unstructured.NestedString(asMap(e), "operator")
		r.Operator = metav1.LabelSelectorOperator(operator)
		r.Values, _, _ = unstructured.NestedStringSlice(asMap(e), "values")
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	out, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return nil
	}
	return out
}

// linkKind is how two objects belong together.
type linkKind uint8

const (
	byClaim linkKind = iota
	byTemplate
	byLabel
	byOwner
	bySubdomain
)

// link is a name that objects share.
type link struct {
	kind linkKind
	name string
}

// weak links join objects only if the same policy places them: policies for the parts of one whole are
// more explicit than their common owner.
func (l link) weak() bool { return l.kind == byOwner || l.kind == bySubdomain }

var numbered = regexp.MustCompile(`^(.+)-([0-9]+)$`)

// ordinalOf splits the name of a claim that a template may have made.
func ordinalOf(claim string) (template string, ordinal int32, ok bool) {
	m := numbered.FindStringSubmatch(claim)
	if m == nil {
		return "", 0, false
	}
	n, err := strconv.ParseInt(m[2], 10, 32)
	return m[1], int32(n), err == nil
}

// links returns the names that the object shares with others of its group.
func (f *Facts) links() (out []link) {
	for _, c := range f.Claims {
		out = append(out, link{byClaim, c})
		if template, _, ok := ordinalOf(c); ok {
			out = append(out, link{byTemplate, template})
		}
	}
	for _, t := range f.Templates {
		out = append(out, link{byTemplate, t})
	}
	if f.Label != "" {
		out = append(out, link{byLabel, f.Label})
	}
	if f.Pinned {
		return out
	}
	if f.Owner != "" {
		out = append(out, link{byOwner, string(f.Owner)})
		if !f.Placed {
			out = append(out, link{byOwner, string(f.UID)}) // its children and its siblings are one group
		}
	}
	if f.Subdomain != "" {
		out = append(out, link{bySubdomain, f.Subdomain})
	}
	return out
}

// why explains a link to users: "they mount the claim pg-1".
func (f *Facts) why(l link) string {
	switch l.kind {
	case byClaim:
		return "it mounts the claim " + l.name
	case byTemplate:
		return "it shares the claims " + l.name + "-N"
	case byLabel:
		return fmt.Sprintf("it has the label %s=%s", v1alpha1.GroupLabel, l.name)
	case byOwner:
		return "its controller is " + cmp.Or(f.OwnerName, "UID "+l.name)
	}
	return "its pods have names of the Service " + l.name
}

// related reports whether the object can be in a group with others.
func (f *Facts) related() bool {
	return f.Placed && (len(f.links()) > 0 || len(f.Affinity) > 0 || f.Pods != nil)
}
