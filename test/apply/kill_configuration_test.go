package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// An object is a desired object of the demo provider.
type object struct {
	kind, name string
	cidr       string   // of a Network; a change replaces the network
	label      string   // a change updates the resource
	uses       []string // names of the Networks that a Cross refers to
	first      bool     // create_before_destroy
}

// A configuration is a set of objects, by kind and name: networks, objects that refer to networks, and files.
type configuration map[string]object

func (p object) key() string { return p.kind + "/" + p.name }

func (p object) resource() schema.GroupVersionResource {
	plural := map[string]string{"Network": "networks", "Cross": "crosses", "File": "files"}[p.kind]
	return schema.GroupVersionResource{Group: "demo.providers.atoll.dev", Version: "v1", Resource: plural}
}

func (p object) spec() map[string]any {
	out := map[string]any{"name": p.name}
	switch p.kind {
	case "Network":
		out["cidr"], out["zone"] = p.cidr, p.label
		out["lifecycle"] = map[string]any{"create_before_destroy": p.first}
	case "Cross":
		refs := []any{}
		for _, name := range p.uses {
			refs = append(refs, fmt.Sprintf(`${demo_network[%q].id}`, name))
		}
		out["references"], out["value"] = refs, p.label
	case "File":
		out["content"] = p.label
	}
	return out
}

// A generator generates random configurations.
type generator struct {
	random *rand.Rand
	made   int
}

func (r *generator) word() string { r.made++; return fmt.Sprintf("v%d", r.made) }

func (r *generator) object(networks []string) object {
	name := fmt.Sprintf("t%d", r.made)
	switch kind := r.random.IntN(5); {
	case kind < 2 || len(networks) == 0:
		return object{kind: "Network", name: name, cidr: r.word(), label: r.word(), first: r.random.IntN(2) == 0}
	case kind < 4:
		return object{kind: "Cross", name: name, label: r.word(), uses: r.some(networks)}
	}
	return object{kind: "File", name: name, label: r.word()}
}

func (r *generator) some(networks []string) []string {
	var out []string
	for range 1 + r.random.IntN(3) {
		out = append(out, networks[r.random.IntN(len(networks))])
	}
	return slices.Compact(out)
}

func (t configuration) networks() []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(t)) {
		if t[key].kind == "Network" {
			out = append(out, t[key].name)
		}
	}
	return out
}

// next returns a configuration of about the same size, with at least so many changes.
func (r *generator) next(before configuration, changes int) configuration {
	after := maps.Clone(before)
	keys := slices.Sorted(maps.Keys(before))
	r.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	// A quarter of the objects is deleted, a quarter is changed, and new objects make up the rest.
	for _, key := range keys[:min(len(keys), changes/4)] {
		delete(after, key)
	}
	for n, key := range keys[min(len(keys), changes/4):min(len(keys), changes*3/4)] {
		p := after[key]
		switch {
		case p.kind == "Network" && n%2 == 0:
			p.cidr = r.word()
		default:
			p.label = r.word()
		}
		after[key] = p
	}
	for n := len(diff(before, after)); n < changes; n++ {
		p := r.object(after.networks())
		after[p.key()] = p
	}
	there := after.networks()
	for key, p := range after {
		if p.kind != "Cross" {
			continue
		}
		if p.uses = slices.DeleteFunc(slices.Clone(p.uses), func(name string) bool { return !slices.Contains(there, name) }); len(p.uses) == 0 {
			p.uses = r.some(there)
		}
		after[key] = p
	}
	return after
}

// diff returns the action for each object on the way from one configuration to another: create, update,
// replace or delete.
func diff(before, after configuration) map[string]string {
	out := map[string]string{}
	for key, p := range after {
		switch old, there := before[key]; {
		case !there:
			out[key] = "create"
		case p.cidr != old.cidr:
			out[key] = "replace"
		case p.label != old.label || !slices.Equal(p.uses, old.uses):
			out[key] = "update"
		}
	}
	for key := range before {
		if _, there := after[key]; !there {
			out[key] = "delete"
		}
	}
	// An object that refers to a replaced network gets the ID of the new one.
	for key, p := range after {
		for _, name := range p.uses {
			if out["Network/"+name] == "replace" && out[key] == "" {
				out[key] = "update"
			}
		}
	}
	return out
}

// write applies the changes from one configuration to another through the API.
func (w *environment) write(ctx context.Context, client dynamic.Interface, before, after configuration) error {
	var mu sync.Mutex
	var failed error
	var writers sync.WaitGroup
	slots := make(chan struct{}, 16)
	do := func(work func() error) {
		slots <- struct{}{}
		writers.Go(func() {
			defer func() { <-slots }()
			if err := work(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, err)
			}
		})
	}
	for key, p := range after {
		api := client.Resource(p.resource()).Namespace("default")
		old, there := before[key]
		if there && slices.Equal(p.uses, old.uses) && p.cidr == old.cidr && p.label == old.label {
			continue
		}
		do(func() error {
			if there {
				patch, err := json.Marshal(map[string]any{"spec": p.spec()})
				if err != nil {
					return err
				}
				_, err = api.Patch(ctx, p.name, types.MergePatchType, patch, metav1.PatchOptions{})
				return err
			}
			_, err := api.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": p.resource().GroupVersion().String(), "kind": p.kind,
				"metadata": map[string]any{"name": p.name}, "spec": p.spec(),
			}}, metav1.CreateOptions{})
			return err
		})
	}
	for key, p := range before {
		if _, there := after[key]; !there {
			do(func() error {
				return client.Resource(p.resource()).Namespace("default").Delete(ctx, p.name, metav1.DeleteOptions{})
			})
		}
	}
	writers.Wait()
	return failed
}

// A worldResource is a resource in the provider's world.
type worldResource struct {
	ID         string
	Version    int
	Attributes map[string]any
}

// listWorld returns all resources in the provider's world, by kind and name.
func (w *environment) listWorld() (map[string][]worldResource, error) {
	out := map[string][]worldResource{}
	for _, kind := range []struct{ typ, kind string }{{"demo_network", "Network"}, {"demo_cross", "Cross"}, {"demo_file", "File"}, {"demo_slow", "Slow"}} {
		paths, err := filepath.Glob(filepath.Join(w.world, "objects", kind.typ, "*.json"))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			var m worldResource
			if err := json.Unmarshal(text, &m); err != nil {
				return nil, err
			}
			key := fmt.Sprintf("%s/%v", kind.kind, m.Attributes["name"])
			out[key] = append(out[key], m)
		}
	}
	return out, nil
}

// A providerCall is a call in the provider's log.
type providerCall struct {
	Call, ID string
	Version  int
}

// providerCalls returns the provider's changing calls after an offset in its log, and the log's length.
func (w *environment) providerCalls(from int64) ([]providerCall, int64, error) {
	text, err := os.ReadFile(filepath.Join(w.world, "log.jsonl"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	var out []providerCall
	for line := range bytes.Lines(text[from:]) {
		var d providerCall
		if json.Unmarshal(line, &d) == nil && (d.Call == "create" || d.Call == "update" || d.Call == "delete") {
			out = append(out, d)
		}
	}
	return out, int64(len(text)), nil
}
