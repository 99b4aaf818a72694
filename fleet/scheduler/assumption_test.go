package scheduler

import (
	"errors"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// revisionOf returns a binding of an object a with a decision for one cluster.
func revisionOf(uid, revision string, generation int64, cluster string) *v1alpha1.ResourceBinding {
	b := &v1alpha1.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "deployment.apps-a", UID: types.UID(uid), ResourceVersion: revision, Generation: generation}}
	b.Spec.Clusters = []v1alpha1.ClusterShare{{Name: cluster}}
	return b
}

var keyOfA = revisionOf("", "", 0, "").Key()

func TestAssumptionIsShown(t *testing.T) {
	base, is := revisionOf("u", "9", 1, "east"), revisionOf("u", "12", 2, "west")
	for name, c := range map[string]struct {
		a     assumption
		event *v1alpha1.ResourceBinding
		shown bool
	}{
		"a new binding is being written":                   {assumption{is: is}, nil, false},
		"it arrives before the answer":                     {assumption{is: is}, revisionOf("u", "12", 1, "west"), true},
		"a change is being written":                        {assumption{base: base, is: is}, base, false},
		"a cluster reports meanwhile":                      {assumption{base: base, is: is}, revisionOf("u", "11", 1, "east"), false},
		"the change arrives before the answer":             {assumption{base: base, is: is}, revisionOf("u", "12", 2, "west"), true},
		"another binding of that name":                     {assumption{base: base, is: is}, revisionOf("v", "11", 1, "east"), true},
		"the binding is deleted meanwhile":                 {assumption{base: base, is: is}, nil, true},
		"it is written and has not arrived":                {assumption{is: is, written: true}, nil, false},
		"an older event arrives":                           {assumption{is: is, written: true}, revisionOf("u", "11", 1, "east"), false},
		"an older event with more digits would be newer":   {assumption{is: revisionOf("u", "100", 2, "west"), written: true}, revisionOf("u", "99", 1, "east"), false},
		"an older event of a predecessor":                  {assumption{is: is, written: true}, revisionOf("t", "8", 7, "east"), false},
		"its event arrives":                                {assumption{is: is, written: true}, is, true},
		"a later event arrives":                            {assumption{is: is, written: true}, revisionOf("u", "13", 2, "west"), true},
		"an event of a successor arrives":                  {assumption{is: is, written: true}, revisionOf("v", "20", 1, "east"), true},
		"versions that cannot be compared: the watch wins": {assumption{is: is, written: true}, revisionOf("u", "x", 2, "east"), true},
	} {
		if shown := c.a.isShownBy(c.event); shown != c.shown {
			t.Errorf("%s: the watch shows it: %t", name, shown)
		}
	}
}

// cachedOne is a cache with one binding or none.
type cachedOne struct{ b *v1alpha1.ResourceBinding }

func (c *cachedOne) Get(types.NamespacedName) (*v1alpha1.ResourceBinding, bool) {
	return c.b, c.b != nil
}
func (c *cachedOne) In(namespace string) []*v1alpha1.ResourceBinding {
	if namespace == "shop" {
		return c.All()
	}
	return nil
}
func (c *cachedOne) All() []*v1alpha1.ResourceBinding {
	if c.b == nil {
		return nil
	}
	return []*v1alpha1.ResourceBinding{c.b}
}

// show has the cache receive an event.
func (c *cachedOne) show(a *assumed, is *v1alpha1.ResourceBinding) (awaited bool) {
	was := c.b
	c.b = is
	return a.observe(was, is)
}

// latest returns the cluster that decisions read of the object; "" if none. All ways to read it must agree.
func latest(t *testing.T, a *assumed) string {
	t.Helper()
	b, exists := a.Get(keyOfA)
	in, all, other := a.In("shop"), a.All(), a.In("other")
	if n := len(in); exists != (n == 1) || n != len(all) || len(other) > 0 || exists && (in[0] != b || all[0] != b) {
		t.Fatalf("the binding is %v, in its namespace %v, in another one %v, and of all %v", b, in, other, all)
	}
	if !exists {
		return ""
	}
	return b.Spec.Clusters[0].Name
}

func TestAssumedUntilShown(t *testing.T) {
	cache := &cachedOne{}
	a := newAssumed(cache)
	expect := func(when, cluster string, left int) {
		t.Helper()
		if is := latest(t, a); is != cluster || len(a.by) != left {
			t.Fatalf("%s: decisions read %q, and %d are assumed", when, is, len(a.by))
		}
	}
	now := time.Now()
	expect("at first", "", 0)

	a.decide(keyOfA, nil, revisionOf("", "", 0, "east"), now)
	a.observe(revisionOf("t", "6", 2, "south"), revisionOf("t", "7", 3, "south"))
	expect("decided, and an event of a predecessor that the cache has no more", "east", 1)
	if written, _ := a.await(keyOfA); written != nil {
		t.Error("a decision counts as written before it is")
	}
	a.wrote(keyOfA, revisionOf("u", "10", 1, "east"), now)
	expect("created", "east", 1)
	if written, _ := a.await(keyOfA); written == nil || a.settle(keyOfA, false) != nil {
		t.Error("a written decision is settled before it is seen")
	}
	if a.observe(revisionOf("t", "8", 3, "south"), nil) {
		t.Error("the deletion of a predecessor is taken for the event that is awaited")
	}
	expect("the deletion of a predecessor arrives", "east", 1)
	if !cache.show(a, revisionOf("u", "10", 1, "east")) {
		t.Error("its object was to be reconciled, and is not when the event arrives")
	}
	expect("its event arrived", "east", 0)

	a.decide(keyOfA, cache.b, revisionOf("u", "10", 1, "west"), now)
	cache.show(a, revisionOf("u", "11", 1, "east"))
	expect("a cluster reports during the write", "west", 1)
	cache.show(a, revisionOf("u", "12", 2, "west"))
	a.wrote(keyOfA, revisionOf("u", "12", 2, "west"), now)
	expect("the event arrived before the answer", "west", 0)

	a.decide(keyOfA, cache.b, revisionOf("u", "12", 2, "east"), now)
	if is := a.settle(keyOfA, true); is == nil || is.Spec.Clusters[0].Name != "east" {
		t.Errorf("a rejected decision is settled with %v", is)
	}
	expect("the write was rejected", "west", 0)

	a.decide(keyOfA, cache.b, revisionOf("u", "12", 2, "east"), now)
	a.doubt(keyOfA)
	if a.settle(keyOfA, true) != nil {
		t.Error("a decision that may be stored does not count until the next try")
	}
	expect("the write had no answer", "east", 1)
	a.settle(keyOfA, false)
	expect("there is no next try", "west", 0)

	a.decide(keyOfA, cache.b, revisionOf("u", "12", 2, "west"), now)
	a.wrote(keyOfA, revisionOf("u", "12", 2, "west"), now)
	expect("the write changed nothing", "west", 0)

	a.decide(keyOfA, cache.b, revisionOf("u", "12", 2, "east"), now)
	a.wrote(keyOfA, revisionOf("u", "13", 3, "east"), now)
	if long := a.unseenSince(now.Add(time.Second)); len(long) != 1 || len(a.unseenSince(now)) != 0 {
		t.Errorf("unseen for a second: %v", long)
	}
	if cache.show(a, nil) {
		t.Error("its object is reconciled although nothing awaits that")
	}
	expect("it was deleted", "", 0)

	a.decide(keyOfA, nil, revisionOf("v", "", 0, "south"), now)
	a.wrote(keyOfA, revisionOf("v", "20", 1, "south"), now)
	a.await(keyOfA)
	cache.b = revisionOf("v", "20", 1, "south")
	a.wrote(keyOfA, cache.b, now)
	if !a.observe(nil, cache.b) {
		t.Error("its object is not reconciled because the binding was read just before the event")
	}
	expect("it was read, and then its event arrived", "south", 0)
}

func TestIsRejection(t *testing.T) {
	resource := schema.GroupResource{Resource: "resourcebindings"}
	for _, c := range []struct {
		err      error
		rejected bool
	}{
		{apierrors.NewConflict(resource, "a", errors.New("changed")), false},
		{apierrors.NewAlreadyExists(resource, "a"), false},
		{apierrors.NewForbidden(resource, "a", errors.New("no")), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewTimeoutError("the outcome is unknown", 1), false},
		{apierrors.NewInternalError(errors.New("lost")), false},
		{apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "create", resource, "a", "", 1, true), false},
		{errors.New("connection reset by peer"), false},
	} {
		if is := isRejection(errors.Join(errors.New("create binding a"), c.err)); is != c.rejected {
			t.Errorf("%v: rejected: %t", c.err, is)
		}
	}
}
