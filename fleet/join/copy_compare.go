package join

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/interpret"
)

// differing returns the paths of the fields, apart from metadata, in which two objects differ, and whether one
// of them is part of the pods that the object makes. It returns no values, because they may be secret.
func differing(k interpret.KindInfo, a, b *unstructured.Unstructured) (paths []string, pods bool) {
	report := func(path []string) {
		paths = append(paths, strings.Join(path, "."))
		pods = pods || k.InPodTemplate(path)
	}
	for _, field := range keysOf(a.Object, b.Object) {
		if field != "metadata" && field != "apiVersion" && field != "kind" {
			compare(a.Object[field], b.Object[field], []string{field}, report)
		}
	}
	return paths, pods
}

func compare(a, b any, path []string, report func(path []string)) {
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	al, aIsList := a.([]any)
	bl, bIsList := b.([]any)
	switch {
	case aIsMap && bIsMap:
		for _, field := range keysOf(am, bm) {
			compare(am[field], bm[field], append(slices.Clone(path), field), report)
		}
	case aIsList && bIsList && len(al) == len(bl):
		for i := range al {
			compare(al[i], bl[i], append(slices.Clone(path), strconv.Itoa(i)), report)
		}
	case !reflect.DeepEqual(a, b):
		report(path)
	}
}

// keysOf returns the keys of two maps, sorted.
func keysOf(a, b map[string]any) []string {
	var out []string
	for key := range a {
		out = append(out, key)
	}
	for key := range b {
		if _, both := a[key]; !both {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}
