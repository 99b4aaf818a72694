package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/atoll-dev/atoll/coordination"
)

func TestOneLeaderAcrossClusters(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	installLeases(t, s)
	type leadership struct {
		cluster string
		token   coordination.Token
		err     error
	}
	leaders := make(chan leadership, 2)
	stand := func(cluster string) (stop func()) {
		lock := newLock(t, s, ns, "web", cluster+"/1")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: 3 * time.Second, RenewDeadline: 2 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					token, err := lock.Token()
					leaders <- leadership{cluster, token, err}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			elector.Run(ctx)
			close(ended)
		}()
		return func() {
			cancel()
			<-ended
		}
	}
	stop := map[string]func(){"east": stand("east"), "west": stand("west")}
	defer func() {
		for _, f := range stop {
			f()
		}
	}()
	first := <-leaders
	if first.err != nil {
		t.Fatal(first.err)
	}
	stop[first.cluster]()
	second := <-leaders
	if second.err != nil || second.cluster == first.cluster || second.token.UID != first.token.UID || second.token.Transitions <= first.token.Transitions {
		t.Errorf("%+v after %+v", second, first)
	}
}

func TestFencingTokensNeverRepeat(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	installLeases(t, s)
	lead(t, newLock(t, s, ns, "web", "east/1"))
	leases := s.dynamic(t).Resource(coordination.LeaseResource).Namespace(ns)
	for _, step := range []struct{ spec, want string }{
		{`"holderIdentity":"west/1"`, "must increase leaseTransitions"},
		{`"holderIdentity":"west/1","leaseTransitions":4`, ""},
		{`"leaseTransitions":3`, "must not decrease"},
		{`"leaseTransitions":null`, "must not decrease"},
		{`"renewTime":"2030-01-01T00:00:00.000000Z"`, ""},
		{`"holderIdentity":null`, ""},
		{`"holderIdentity":"west/1"`, "must increase leaseTransitions"},
		{`"holderIdentity":"east/1","leaseTransitions":5`, ""},
	} {
		_, err := leases.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{`+step.spec+`}}`), metav1.PatchOptions{})
		if refused := apierrors.IsInvalid(err) && strings.Contains(err.Error(), step.want); refused != (step.want != "") || (!refused && err != nil) {
			t.Errorf("%s: %v, want %q", step.spec, err, step.want)
		}
	}
	if out := s.mustKubectl(t, "", "get", "leases.coordination.atoll.dev", "web", "-n", ns); !strings.Contains(out, "east/1") {
		t.Error(out)
	}
}

func TestFenceRejectsOldLeader(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	f := newFence(t, s, ns)
	old, oldToken := f.leader("east")
	write := func(w dynamic.ResourceInterface, name string, token coordination.Token) error {
		_, err := w.Create(t.Context(), widget(name, token), metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"touched", "untouched"} {
		if err := write(old, name, oldToken); err != nil {
			t.Fatal(err)
		}
	}
	admin := s.dynamic(t).Resource(widgets).Namespace(ns)
	if _, err := admin.Create(t.Context(), widget("free", coordination.Token{}), metav1.CreateOptions{}); err != nil {
		t.Errorf("unbound user: %v", err)
	}

	// The old leader pauses, and a new one starts.
	successor, newToken := f.leader("west")
	if _, err := successor.Patch(t.Context(), "touched", types.MergePatchType, mark(newToken), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// It is refused at once, however far behind the server's own copy of the lease is.
	if _, err := old.Patch(t.Context(), "touched", types.MergePatchType, mark(oldToken), metav1.PatchOptions{}); !coordination.IsFenced(err) {
		t.Errorf("the old leader overwrites the new one: %v", err)
	}
	eventually(t, "the old leader is also refused on an object that the new one has not written", func(context.Context) error {
		_, err := old.Patch(t.Context(), "untouched", types.MergePatchType, mark(oldToken), metav1.PatchOptions{})
		if !coordination.IsFenced(err) {
			return fmt.Errorf("patch: %v", err)
		}
		return nil
	})
	if err := write(old, "late", oldToken); !coordination.IsFenced(err) || !strings.Contains(err.Error(), "west/1") {
		t.Errorf("the old leader creates: %v", err)
	}

	// Unbound users can still change objects that old leaders have marked.
	s.mustKubectl(t, "", "annotate", "widgets.fence.test", "untouched", "-n", ns, "note=by-hand")

	t.Run("status", func(t *testing.T) {
		status := func(w dynamic.ResourceInterface, token string) error {
			_, err := w.Patch(t.Context(), "touched", types.MergePatchType, []byte(`{"status":{"fence":"`+token+`"}}`), metav1.PatchOptions{}, "status")
			return err
		}
		if err := status(successor, newToken.String()); err != nil {
			t.Errorf("the leader: %v", err)
		}
		if err := status(old, oldToken.String()); !coordination.IsFenced(err) {
			t.Errorf("the old leader: %v", err)
		}
		if err := status(old, "mine"); !apierrors.IsForbidden(err) {
			t.Errorf("an invalid token: %v", err)
		}
	})

	t.Run("delete", func(t *testing.T) {
		remove := func(w dynamic.ResourceInterface, name string) error {
			obj, err := admin.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return w.Delete(t.Context(), name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(obj.GetResourceVersion())}})
		}
		if err := remove(old, "untouched"); !coordination.IsFenced(err) {
			t.Errorf("an object that the new leader has not marked: %v", err)
		}
		if err := successor.Delete(t.Context(), "touched", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "precondition") {
			t.Errorf("without a precondition: %v", err)
		}
		if err := remove(successor, "touched"); err != nil {
			t.Errorf("an object that the leader has marked: %v", err)
		}
		if err := admin.Delete(t.Context(), "free", metav1.DeleteOptions{}); err != nil {
			t.Errorf("unbound user: %v", err)
		}
	})
}

func TestFenceOutlivesItsLease(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	f := newFence(t, s, ns)
	old, oldToken := f.leader("east")
	if _, err := old.Create(t.Context(), widget("w", oldToken), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	leases := s.dynamic(t).Resource(coordination.LeaseResource).Namespace(ns)
	if err := leases.Delete(t.Context(), f.lease.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The recreated lease starts with fewer transitions than the old leader's token
	// has.
	successor, newToken := f.leader("west")
	if newToken.Transitions > oldToken.Transitions {
		t.Fatalf("test setup: token %v must be lower than %v", newToken, oldToken)
	}
	if _, err := successor.Patch(t.Context(), "w", types.MergePatchType, mark(newToken), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := leases.Delete(t.Context(), f.lease.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server notices that the lease was deleted", func(context.Context) error {
		_, err := old.Patch(t.Context(), "w", types.MergePatchType, mark(oldToken), metav1.PatchOptions{})
		if !coordination.IsFenced(err) {
			t.Fatalf("the old leader overwrites the new one: %v", err)
		}
		if strings.Contains(err.Error(), "has begun") {
			return errors.New("the server still compares with the lease")
		}
		return nil
	})
	if err := coordination.RemoveFence(t.Context(), s.config(t), f.lease); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the fence is removed", func(context.Context) error {
		_, err := old.Patch(t.Context(), "w", types.MergePatchType, mark(oldToken), metav1.PatchOptions{})
		return err
	})
}

// TestObjectsEnforceLeaderOrder has an old leader write as fast as it can while the
// new one writes, on a server that never observes the new lease.
func TestObjectsEnforceLeaderOrder(t *testing.T) {
	s := theServer(t)
	ns := s.namespace(t)
	f := newFence(t, s, ns)
	old, oldToken := f.leader("east")
	successor, newToken := f.leader("west")
	if err := s.client(t).AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().
		Delete(t.Context(), "fence."+ns+".widgets.lease", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "only objects enforce the order", func(ctx context.Context) error {
		_, err := old.Create(ctx, widget("w", oldToken), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i := range 20 {
		name := fmt.Sprintf("w%d", i)
		if _, err := old.Create(t.Context(), widget(name, oldToken), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		refused := make(chan error, 2)
		for range cap(refused) {
			go func() {
				for n := 0; ; n++ {
					patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"n":%d}}`, coordination.FenceAnnotation, oldToken, n)
					if _, err := old.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsConflict(err) {
						refused <- err
						return
					}
				}
			}()
		}
		eventually(t, "the new leader writes", func(ctx context.Context) error {
			_, err := successor.Patch(ctx, name, types.MergePatchType, mark(newToken), metav1.PatchOptions{})
			return err
		})
		for range cap(refused) {
			if err := <-refused; !coordination.IsFenced(err) {
				t.Errorf("the old leader: %v", err)
			}
		}
		obj, err := successor.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := obj.GetAnnotations()[coordination.FenceAnnotation]; got != newToken.String() {
			t.Errorf("%s has the token %s, want %s", name, got, newToken)
		}
	}
}

var widgets = schema.GroupVersionResource{Group: "fence.test", Version: "v1", Resource: "widgets"}

func installLeases(t *testing.T, s atoll) {
	t.Helper()
	if err := coordination.Install(t.Context(), s.config(t)); err != nil {
		t.Fatal(err)
	}
}

// fence is a fence around widgets for the service account ctl in namespace ops of all
// members.
type fence struct {
	t     *testing.T
	s     atoll
	ns    string
	lease types.NamespacedName
}

func newFence(t *testing.T, s atoll, ns string) fence {
	t.Helper()
	installLeases(t, s)
	s.mustKubectl(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.fence.test}, spec: {
  group: fence.test, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true,
  subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`, "apply", "-f", "-")
	s.mustKubectl(t, "", "wait", "--for=condition=Established", "crd/widgets.fence.test")
	f := fence{t, s, ns, types.NamespacedName{Namespace: ns, Name: "widgets"}}
	rules := coordination.Rules{
		Lease:           types.NamespacedName{Namespace: "nowhere", Name: "widgets"},
		Resources:       []schema.GroupResource{{Group: "fence.test", Resource: "widgets"}, {Group: "fence.test", Resource: "widgets/status"}},
		ServiceAccounts: []types.NamespacedName{{Namespace: ns, Name: "ctl"}},
	}
	if err := coordination.InstallFence(t.Context(), s.config(t), rules); err == nil || !strings.Contains(err.Error(), "create the namespace") {
		t.Errorf("a lease in a namespace that does not exist: %v", err)
	}
	rules.Lease = f.lease
	if err := coordination.InstallFence(t.Context(), s.config(t), rules); err != nil {
		t.Fatal(err)
	}
	return f
}

// leader makes a member's operator take the lease. It returns the operator's client and
// its token, which the fence accepts.
func (f fence) leader(cluster string) (dynamic.ResourceInterface, coordination.Token) {
	f.t.Helper()
	token := lead(f.t, newLock(f.t, f.s, f.ns, f.lease.Name, cluster+"/1"))
	writer := f.operator(cluster)
	eventually(f.t, "the fence is active", func(ctx context.Context) error {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := writer.Create(ctx, widget("unmarked", coordination.Token{}), dryRun)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "no token of it") {
			return fmt.Errorf("a write without a token: %v", err)
		}
		alien := coordination.Token{UID: "00000000-0000-0000-0000-000000000000", ResourceVersion: "1"}
		if _, err := writer.Create(ctx, widget("alien", alien), dryRun); !coordination.IsFenced(err) {
			return fmt.Errorf("a token of another lease: %v", err)
		}
		_, err = writer.Create(ctx, widget("marked", token), dryRun)
		return err
	})
	return writer, token
}

// operator returns a client of a member's operator.
func (f fence) operator(cluster string) dynamic.ResourceInterface {
	f.t.Helper()
	config := f.s.config(f.t)
	config.Impersonate = rest.ImpersonationConfig{UserName: cluster + ":system:serviceaccount:" + f.ns + ":ctl", Groups: []string{"system:masters"}}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		f.t.Fatal(err)
	}
	return client.Resource(widgets).Namespace(f.ns)
}

func newLock(t *testing.T, s atoll, ns, name, identity string) *coordination.Lock {
	t.Helper()
	lock, err := coordination.NewLock(s.config(t), ns, name, identity)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// lead takes a lease as leader election does with an expired one.
func lead(t *testing.T, lock *coordination.Lock) coordination.Token {
	t.Helper()
	record := resourcelock.LeaderElectionRecord{HolderIdentity: lock.Identity(), LeaseDurationSeconds: 10}
	last, _, err := lock.Get(t.Context())
	switch {
	case apierrors.IsNotFound(err):
		err = lock.Create(t.Context(), record)
	case err == nil:
		record.LeaderTransitions = last.LeaderTransitions + 1
		err = lock.Update(t.Context(), record)
	}
	if err != nil {
		t.Fatal(err)
	}
	token, err := lock.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// widget returns a Widget, marked by a leader if the token is not zero.
func widget(name string, token coordination.Token) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "fence.test/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
	}}
	if token != (coordination.Token{}) {
		coordination.Fence(w, token)
	}
	return w
}

func mark(token coordination.Token) []byte {
	return fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, coordination.FenceAnnotation, token)
}
