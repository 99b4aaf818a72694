package test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/fleet/schema"
	"github.com/atoll-dev/atoll/test/pairs"
)

// Members serve the types of a group of their own, so that the fleet leaves
// alone what this test sends.
const hereGroup, thereGroup = "here.pairs.test", "there.pairs.test"

var (
	negotiatedPairs = flag.Int("runs", 8, "how many negotiated pairs of schemas real API servers serve")
	pairsSeed       = flag.Uint64("seed", 5, "the seed of the pairs of schemas")
)

// A negotiatedPair is one of the pairs of test/negotiation, served by real API servers: a member serves each
// schema, and Atoll the negotiated one.
type negotiatedPair struct {
	number         int
	r              pairs.Generator
	east, west     *schema.Props
	result         *schema.Props
	plural, kind   string
	atoll          dynamic.ResourceInterface
	members        map[string]dynamic.ResourceInterface
	sent, accepted int
}

// What test/negotiation says of objects in memory, real API servers say too:
// they take each negotiated schema as a CRD, and whatever Atoll then accepts,
// and stores, both members take, whole, when it is created and when it changes.
func TestNegotiatedSchemasHoldInRealAPIServers(t *testing.T) {
	f := whole(t)
	t.Parallel()
	var all []*negotiatedPair
	for number := 0; len(all) < *negotiatedPairs; number++ {
		r := pairs.New(*pairsSeed, uint64(number))
		a, b := r.Pair()
		result, refusals := schema.Compare(a, b, true)
		if len(refusals) == 0 {
			all = append(all, &negotiatedPair{number: number, r: r, east: a, west: b, result: result,
				plural: fmt.Sprintf("pairs%d", number), kind: fmt.Sprintf("Pair%d", number)})
		}
	}
	var workers sync.WaitGroup
	queue := make(chan *negotiatedPair)
	for range 12 { // who mostly wait until a type is served
		workers.Go(func() {
			for p := range queue {
				if err := p.try(t, f); err != nil {
					t.Errorf("pair %d: %v\neast: %s\nwest: %s\nboth: %s", p.number, err, asJSON(p.east), asJSON(p.west), asJSON(p.result))
				}
			}
		})
	}
	for _, p := range all {
		queue <- p
	}
	close(queue)
	workers.Wait()
	sent, accepted, without := 0, 0, 0
	for _, p := range all {
		sent, accepted = sent+p.sent, accepted+p.accepted
		if p.accepted == 0 {
			without++
		}
	}
	t.Logf("%d pairs; Atoll accepted %d of %d objects, and none of %d pairs", len(all), accepted, sent, without)
	if accepted < len(all) {
		t.Errorf("only %d objects were accepted: that says little", accepted)
	}
}

func asJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

func (p *negotiatedPair) try(t *testing.T, f *fixture) error {
	var err error
	if p.atoll, err = p.serve(t, f, "atoll", hereGroup, p.result); err != nil {
		return fmt.Errorf("the result: %w", err)
	}
	p.members = map[string]dynamic.ResourceInterface{}
	for name, props := range map[string]*schema.Props{"east": p.east, "west": p.west} {
		if p.members[name], err = p.serve(t, f, name, thereGroup, props); err != nil {
			return err
		}
	}
	var before map[string]any
	for i := range 6 {
		object := p.r.Object([]*schema.Props{p.result, p.result, p.east, p.west}[i%4], 0)
		stored, err := p.store(t.Context(), object, before)
		p.sent++
		if err != nil || stored == nil {
			if err != nil {
				return err
			}
			continue
		}
		p.accepted++
		for name := range p.members {
			if err := p.send(t.Context(), name, stored, before != nil); err != nil {
				return fmt.Errorf("what Atoll stores %s refuses or loses: %w\nobject: %s\nbefore: %s", name, err, asJSON(stored), asJSON(before))
			}
		}
		before = stored
	}
	return nil
}

// serve has a cluster serve a schema, and waits until it does.
func (p *negotiatedPair) serve(t *testing.T, f *fixture, cluster, group string, props *schema.Props) (dynamic.ResourceInterface, error) {
	crd, err := schema.CRD([]schema.Type{{Group: group, Version: "v1", Kind: p.kind, Plural: p.plural, Singular: strings.ToLower(p.kind), ListKind: p.kind + "List",
		Scope: apiextensionsv1.NamespaceScoped, Schema: props}})
	if err != nil {
		return nil, err
	}
	client := f.dynamicOf(t, cluster)
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	if _, err := client.Resource(crdsResource).Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("%s does not take the CRD: %w", cluster, err)
	}
	t.Cleanup(func() {
		_ = client.Resource(crdsResource).Delete(context.Background(), crd.Name, metav1.DeleteOptions{})
	})
	objects := client.Resource(runtimeschema.GroupVersionResource{Group: group, Version: "v1", Resource: p.plural}).Namespace("default")
	return objects, wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, settle, true, func(ctx context.Context) (bool, error) {
		_, err := objects.List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
}

// store gives what Atoll makes of an object, nil if it refuses it.
func (p *negotiatedPair) store(ctx context.Context, object, before map[string]any) (map[string]any, error) {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(object)}
	u.SetAPIVersion(hereGroup + "/v1")
	u.SetKind(p.kind)
	u.SetName("one")
	stored, err := put(ctx, p.atoll, u, before != nil, "")
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return content(stored.Object), nil
}

// put creates or updates an object.
func put(ctx context.Context, client dynamic.ResourceInterface, u *unstructured.Unstructured, there bool, validation string) (*unstructured.Unstructured, error) {
	if !there {
		return client.Create(ctx, u, metav1.CreateOptions{FieldValidation: validation})
	}
	now, err := client.Get(ctx, u.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	u.SetResourceVersion(now.GetResourceVersion())
	return client.Update(ctx, u, metav1.UpdateOptions{FieldValidation: validation})
}

// content is an object without what differs between clusters.
func content(object map[string]any) map[string]any {
	out := runtime.DeepCopyJSON(object)
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		delete(out, name)
	}
	return out
}

// send sends what Atoll has to a member, which has to know all fields and to
// keep all values.
func (p *negotiatedPair) send(ctx context.Context, member string, stored map[string]any, there bool) error {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(stored)}
	u.SetAPIVersion(thereGroup + "/v1")
	u.SetKind(p.kind)
	u.SetName("one")
	got, err := put(ctx, p.members[member], u, there, metav1.FieldValidationStrict)
	if err != nil {
		return err
	}
	if has := content(got.Object); !keeps(has, stored) {
		return fmt.Errorf("it has made of it %v", has)
	}
	return nil
}

// keeps reports whether got contains everything in want. A member may default fields that Atoll does not know.
func keeps(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		has, ok := got.(map[string]any)
		for name, v := range want {
			x, there := has[name]
			ok = ok && there && keeps(x, v)
		}
		return ok
	case []any:
		has, ok := got.([]any)
		if !ok || len(has) != len(want) {
			return false
		}
		for i := range want {
			if !keeps(has[i], want[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(got, want)
}

// A rule about what an object was before is about two versions of it. A member
// that has not seen the one between may refuse what the control plane took.
func TestTransitionRulesAreAboutWhatAClusterHas(t *testing.T) {
	f := whole(t)
	t.Parallel()
	props := &schema.Props{Type: "object", Properties: map[string]schema.Props{"spec": {Type: "object", Properties: map[string]schema.Props{
		"step": {Type: "integer", XValidations: []schema.Rule{{Rule: "self <= oldSelf + 1"}}}}}}}
	p := &negotiatedPair{plural: "steps", kind: "Step", members: map[string]dynamic.ResourceInterface{}}
	var err error
	if p.atoll, err = p.serve(t, f, "atoll", hereGroup, props); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"east", "west"} {
		if p.members[name], err = p.serve(t, f, name, thereGroup, props); err != nil {
			t.Fatal(err)
		}
	}
	var before map[string]any
	for step := int64(1); step <= 3; step++ {
		if before, err = p.store(t.Context(), map[string]any{"spec": map[string]any{"step": step}}, before); err != nil || before == nil {
			t.Fatalf("Atoll refuses step %d: %v", step, err)
		}
		if err := p.send(t.Context(), "east", before, step > 1); err != nil {
			t.Errorf("east, which has seen each step, refuses %d: %v", step, err)
		}
		if step == 2 {
			continue // west does not see it
		}
		err := p.send(t.Context(), "west", before, step > 1)
		if step == 1 && err != nil || step == 3 && !apierrors.IsInvalid(errors.Unwrap(err)) && !apierrors.IsInvalid(err) {
			t.Errorf("west at step %d: %v", step, err)
		}
	}
}
