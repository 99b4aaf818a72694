package syncer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// digestOf returns a digest of a value's JSON, whose keys are sorted.
func digestOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		// Objects come from JSON. A value that cannot be encoded must be equal to nothing.
		return fmt.Sprintf("%p", &data)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:12])
}

// digestLive returns a digest of the parts of the member's object that the syncer manages:
// everything except status, and of labels and annotations only those that the syncer sets.
// While the digest is unchanged, no one has changed the object. Others may label and annotate
// it: the member's own controllers do. ignored is the path of a field that another writer sets,
// if any.
func digestLive(live, desired *unstructured.Unstructured, left []string) string {
	if len(left) > 0 {
		live = live.DeepCopy()
		unstructured.RemoveNestedField(live.Object, left...)
	}
	o := make(map[string]any, len(live.Object))
	for field, value := range live.Object {
		if field != "status" && field != "metadata" {
			o[field] = value
		}
	}
	return digestOf([]any{o, live.GetUID(),
		intersect(live.GetLabels(), desired.GetLabels()), intersect(live.GetAnnotations(), desired.GetAnnotations())})
}

// intersect returns the entries of have whose keys are in want.
func intersect(have, want map[string]string) map[string]string {
	out := map[string]string{}
	for key := range want {
		if value, ok := have[key]; ok {
			out[key] = value
		}
	}
	return out
}

// differences lists fields in which the member's object differs from the result of an apply. It
// compares the same parts as digestLive, and names at most a few fields.
func differences(live, would, desired *unstructured.Unstructured) string {
	var fields []string
	for _, field := range slices.Sorted(maps.Keys(merged(live.Object, would.Object))) {
		if field != "status" && field != "metadata" {
			fields = append(fields, diffPaths(field, live.Object[field], would.Object[field])...)
		}
	}
	for _, of := range []struct {
		name              string
		have, would, want map[string]string
	}{{"metadata.labels", live.GetLabels(), would.GetLabels(), desired.GetLabels()},
		{"metadata.annotations", live.GetAnnotations(), would.GetAnnotations(), desired.GetAnnotations()}} {
		for _, key := range slices.Sorted(maps.Keys(of.want)) {
			if of.have[key] != of.would[key] {
				fields = append(fields, of.name+"["+key+"]")
			}
		}
	}
	return shortList(fields)
}

// shortList names at most a few fields.
func shortList(fields []string) string {
	const most = 8
	if len(fields) > most {
		fields = append(slices.Clone(fields[:most]), fmt.Sprintf("and %d more", len(fields)-most))
	}
	return strings.Join(fields, ", ")
}

// diffPaths returns the paths below one field at which two values differ.
func diffPaths(path string, a, b any) []string {
	if equality.Semantic.DeepEqual(a, b) {
		return nil
	}
	x, ok1 := a.(map[string]any)
	y, ok2 := b.(map[string]any)
	if ok1 && ok2 {
		var out []string
		for _, key := range slices.Sorted(maps.Keys(merged(x, y))) {
			out = append(out, diffPaths(path+"."+key, x[key], y[key])...)
		}
		return out
	}
	list, ok1 := a.([]any)
	other, ok2 := b.([]any)
	if ok1 && ok2 && len(list) == len(other) {
		var out []string
		for i := range list {
			out = append(out, diffPaths(fmt.Sprintf("%s[%d]", path, i), list[i], other[i])...)
		}
		return out
	}
	return []string{path}
}

func merged(a, b map[string]any) map[string]any {
	out := make(map[string]any, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}
