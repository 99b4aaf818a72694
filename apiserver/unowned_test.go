package apiserver_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/kv/mvcc"
)

// TestUnowned: for kinds that the garbage collector ignores, requests that it would
// have to carry out are rejected. Everything else works as for any kind.
func TestUnowned(t *testing.T) {
	t.Parallel()
	cfg := makeFiles(t)
	cfg.Unowned = []schema.GroupVersionResource{gadgets()}
	server := serveGadgets(t, cfg)
	client, ctx := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default"), t.Context()
	invalid := func(what string, err error, words string) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: it lacks %q: %v", what, words, err)
		}
	}
	owned := gadget("owned", `{}`)
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "b"}})
	_, err := client.Create(ctx, owned, metav1.CreateOptions{})
	invalid("an owner", err, "metadata.ownerReferences: Forbidden: gadgets.tools.example.com are not deleted with an owner: omit this field")
	for _, name := range []string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents} {
		waiting := gadget("waiting", `{}`)
		waiting.SetFinalizers([]string{"example.com/mine", name})
		_, err = client.Create(ctx, waiting, metav1.CreateOptions{})
		invalid(name, err, "metadata.finalizers[1]: Invalid value: \""+name+"\": gadgets.tools.example.com have no dependents, and no controller would remove this finalizer")
	}

	if _, err := client.Create(ctx, gadget("a", `{}`), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]}}`), metav1.PatchOptions{})
	invalid("an owner that it is given", err, "metadata.ownerReferences: Forbidden")

	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		options := metav1.DeleteOptions{PropagationPolicy: &policy}
		const words = "have no dependents: use Background, or omit the policy (kubectl delete --cascade=background)"
		invalid(string(policy), client.Delete(ctx, "a", options), "propagationPolicy: Invalid value: \""+string(policy)+"\": gadgets.tools.example.com "+words)
		invalid("all, "+string(policy), client.DeleteCollection(ctx, options, metav1.ListOptions{}), words)
	}
	invalid("the former way", client.Delete(ctx, "a", metav1.DeleteOptions{OrphanDependents: ptr.To(true)}), "orphanDependents: Invalid value: true")
	// Deleting a namespace does not count as deleting an owner.
	if _, err := server.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inGoing := gadget("b", `{}`)
	inGoing.SetNamespace("going")
	if _, err := dynamicClient(t, server.config).Resource(gadgets()).Namespace("going").Create(ctx, inGoing, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := server.client.CoreV1().Namespaces().Delete(ctx, "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantCounted(t, server, gadgets(), gadget)
	for _, options := range []metav1.DeleteOptions{{}, {PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}} {
		if err := client.Delete(ctx, "a", options); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	if _, err := client.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted in the background: %v", err)
	}
	await(t, "the namespace is gone", func() error {
		_, err := server.client.CoreV1().Namespaces().Get(ctx, "going", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.New("it still exists")
	})
}

// TestUnownedObjectsAreNotCollected: an object with an owner reference from before is not
// deleted with its owner.
func TestUnownedObjectsAreNotCollected(t *testing.T) {
	t.Parallel()
	keyspace, _ := openKeyspace(t, inSQLite, mvcc.Options{})
	before := startServer(t, keyspace, makeFiles(t), "before")
	defineGadgets(t, before)
	ctx := t.Context()
	owner, err := before.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}}}
	ours := gadget("owned", `{}`)
	ours.SetOwnerReferences(owned.OwnerReferences)
	if _, err := dynamicClient(t, before.config).Resource(gadgets()).Namespace("default").Create(ctx, ours, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := before.client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: owned}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}

	cfg := makeFiles(t)
	cfg.Unowned = []schema.GroupVersionResource{gadgets()}
	server := startServer(t, keyspace, cfg, "before")
	defer server.stop()
	if err := server.client.CoreV1().ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the owner's other dependent is deleted", func() error {
		_, err := server.client.CoreV1().ConfigMaps("default").Get(ctx, "owned", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it still exists: %v", err)
	})
	client := dynamicClient(t, server.config).Resource(gadgets()).Namespace("default")
	if _, err := client.Patch(ctx, "owned", types.MergePatchType, []byte(`{"spec":{"size":1}}`), metav1.PatchOptions{}); err != nil {
		t.Errorf("update of an object with an earlier owner reference: %v", err)
	}
}
