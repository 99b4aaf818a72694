// Package join has what a user does with the clusters of a fleet: they join, in mode Push or Pull,
// leave, may be allowed to lose many objects, and have objects that are copied to the control plane. Each is
// a request to the API of the control plane, for the controllers in the other packages of the fleet to carry out.
package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// Options say which cluster joins, and how to reach it.
type Options struct {
	// Name of the Cluster.
	Name string
	// Kubeconfig of the member. Relative file paths in it are resolved against Dir.
	Kubeconfig []byte
	Dir        string
	// Context of the kubeconfig. Empty means the current context.
	Context string
	// Adopt takes over the objects that an earlier membership left in the cluster, and uses its namespaces.
	Adopt bool
	// AcceptRights lets the cluster have the rights of another one that had its name.
	AcceptRights bool
	// Progress, if set, is called with a sentence for each step.
	Progress func(string)
}

// progressReporter wraps a progress callback that may be nil, and drops repeated messages.
func progressReporter(progress func(string)) func(format string, args ...any) {
	last := ""
	return func(format string, args ...any) {
		if now := fmt.Sprintf(format, args...); progress != nil && now != last {
			last = now
			progress(now)
		}
	}
}

const probeMemberTimeout = 10 * time.Second

// Push registers a cluster in mode Push and returns when it is Ready, or when ctx ends. It can be
// repeated. With another kubeconfig, it renews the credentials.
func Push(ctx context.Context, atoll *rest.Config, o Options) error {
	if err := checkClusterName(o.Name); err != nil {
		return err
	}
	tell := progressReporter(o.Progress)
	packed, err := packKubeconfig(o.Kubeconfig, o.Context, o.Dir)
	if err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	member, err := fleet.MemberConfig(packed)
	if err != nil {
		return fmt.Errorf("join %s: the kubeconfig cannot be used: %w", o.Name, err)
	}
	id, version, err := probeMember(ctx, member)
	if err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	tell("%s answers: Kubernetes %s", o.Name, version)

	dyn, err := dynamic.NewForConfig(atoll)
	if err != nil {
		return fmt.Errorf("join %s: make a client of Atoll: %w", o.Name, err)
	}
	kube, err := kubernetes.NewForConfig(atoll)
	if err != nil {
		return fmt.Errorf("join %s: make a client of Atoll: %w", o.Name, err)
	}
	if err := checkAtoll(ctx, atoll); err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	if err := checkIdentity(ctx, dyn, kube, o.Name, id); err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	if !o.AcceptRights {
		if err := checkRights(ctx, kube, o.Name, id); err != nil {
			return fmt.Errorf("join %s: %w", o.Name, err)
		}
	}
	secret, err := storeKubeconfig(ctx, kube, o.Name, packed)
	if err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	cluster, err := register(ctx, dyn, o.Name, secret, o.Adopt)
	if err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	if err := setSecretOwner(ctx, kube, secret, cluster); err != nil {
		return fmt.Errorf("join %s: %w", o.Name, err)
	}
	tell("%s is registered; waiting until it is Ready", o.Name)
	return waitReady(ctx, dyn, o.Name, tell)
}

func checkClusterName(name string) error {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return fmt.Errorf("join: %q is not a valid cluster name: %s", name, msgs[0])
	}
	if slices.Contains(v1alpha1.ReservedClusterNames(), name) {
		return fmt.Errorf("join: the cluster name %s is reserved: its users would get the names of Atoll's or Kubernetes' own users; choose another name", name)
	}
	return nil
}

// probeMember checks that a member answers, and returns its cluster ID and version. The ID is empty
// if the kubeconfig's identity may not read it.
func probeMember(ctx context.Context, member *rest.Config) (id, version string, err error) {
	cfg := rest.CopyConfig(member)
	cfg.Timeout = probeMemberTimeout
	fleet.BoundAnswers(cfg)
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", "", fmt.Errorf("create a client from the kubeconfig: %w", err)
	}
	v, err := kube.Discovery().ServerVersion()
	switch {
	case apierrors.IsUnauthorized(err):
		return "", "", errors.New("the cluster does not accept the credentials in the kubeconfig: check that they have not expired")
	case err != nil:
		return "", "", fmt.Errorf("the cluster at %s does not answer: check the address and the network: %w", cfg.Host, err)
	}
	ns, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	switch {
	case err == nil && !v1alpha1.ValidClusterID(string(ns.UID)):
		return "", "", errors.New("the namespace kube-system of the cluster has no valid UID, so this is not a Kubernetes cluster: check the address")
	case err == nil:
		id = string(ns.UID)
	case apierrors.IsUnauthorized(err):
		return "", "", errors.New("the cluster does not accept the credentials in the kubeconfig: check that they have not expired")
	case !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
		return "", "", fmt.Errorf("read the UID of the cluster's namespace kube-system: %w", err)
	}
	return id, v.GitVersion, nil
}

// checkIdentity rejects a cluster that has joined under another name, and Atoll itself: each would
// be fed its own objects as somebody else's. It also rejects a cluster if another cluster has
// joined under its name.
func checkIdentity(ctx context.Context, dyn dynamic.Interface, kube kubernetes.Interface, name, id string) error {
	if id == "" {
		return nil
	}
	if ns, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err == nil && string(ns.UID) == id {
		return errors.New("the kubeconfig points to Atoll itself: use the kubeconfig of the member cluster")
	}
	list, err := dyn.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the clusters: %w", err)
	}
	for i := range list.Items {
		var c v1alpha1.Cluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &c); err != nil {
			return fmt.Errorf("read the clusters: %w", err)
		}
		switch {
		case c.Name != name && c.Status.ID == id:
			return fmt.Errorf("this cluster has already joined as %s: use that name, or run `atoll leave %s` first", c.Name, c.Name)
		case c.Name == name && !c.AcceptsID(id):
			return fmt.Errorf("another cluster has joined under this name: its namespace kube-system has UID %s, not %s. Use its kubeconfig. "+
				"If the cluster was recreated and its data is lost, run `kubectl annotate cluster %s %s=%s --overwrite` and join again",
				c.Status.ID, id, name, v1alpha1.AcceptIDAnnotation, id)
		}
	}
	return nil
}

func storeKubeconfig(ctx context.Context, kube kubernetes.Interface, name string, packed []byte) (*corev1.Secret, error) {
	if err := controllers.EnsureNamespace(ctx, kube, v1alpha1.SystemNamespace); err != nil {
		return nil, err
	}
	api := kube.CoreV1().Secrets(v1alpha1.SystemNamespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cluster-" + name, Namespace: v1alpha1.SystemNamespace},
		Type: v1alpha1.KubeconfigSecretType, Data: map[string][]byte{v1alpha1.KubeconfigSecretKey: packed}}
	out, err := api.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, perr := json.Marshal(map[string]any{"data": secret.Data})
		if perr != nil {
			return nil, perr
		}
		out, err = api.Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("store the kubeconfig in Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if out.Type != v1alpha1.KubeconfigSecretType {
		return nil, fmt.Errorf("Secret %s/%s has type %s, so it does not belong to Atoll: delete it or choose another cluster name", out.Namespace, out.Name, out.Type)
	}
	return out, nil
}

func register(ctx context.Context, dyn dynamic.Interface, name string, secret *corev1.Secret, adopt bool) (*unstructured.Unstructured, error) {
	api := dyn.Resource(v1alpha1.ClusterResource)
	ref := map[string]any{"namespace": secret.Namespace, "name": secret.Name}
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster",
		"metadata": clusterMetadata(name, adopt),
		"spec":     map[string]any{"kubeconfigSecretRef": ref},
	}}
	out, err := api.Create(ctx, cluster, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		patch, perr := json.Marshal(map[string]any{"metadata": clusterMetadata(name, adopt), "spec": map[string]any{"mode": v1alpha1.ModePush, "kubeconfigSecretRef": ref}})
		if perr != nil {
			return nil, perr
		}
		out, err = api.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("register the cluster: %w", err)
	}
	if out.GetDeletionTimestamp() != nil {
		return nil, errLeaving
	}
	return out, nil
}

func clusterMetadata(name string, adopt bool) map[string]any {
	out := map[string]any{"name": name}
	if adopt {
		out["annotations"] = map[string]any{v1alpha1.AdoptAnnotation: "true"}
	}
	return out
}

// setSecretOwner makes the Cluster own the Secret. The garbage collector then deletes the Secret
// after the Cluster, and not before: the Cluster exists until its member is empty.
func setSecretOwner(ctx context.Context, kube kubernetes.Interface, secret *corev1.Secret, cluster *unstructured.Unstructured) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{{
		APIVersion: cluster.GetAPIVersion(), Kind: cluster.GetKind(), Name: cluster.GetName(), UID: cluster.GetUID()}}}})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Secrets(secret.Namespace).Patch(ctx, secret.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set the owner of Secret %s/%s to the cluster: %w", secret.Namespace, secret.Name, err)
	}
	return nil
}

func waitReady(ctx context.Context, dyn dynamic.Interface, name string, tell func(string, ...any)) error {
	why := "no status yet: check that the Atoll server is running"
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		u, err := dyn.Resource(v1alpha1.ClusterResource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		var c v1alpha1.Cluster
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c); err != nil {
			return false, err
		}
		ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady)
		if ready == nil {
			return false, nil
		}
		if ready.Status == metav1.ConditionTrue {
			tell("%s is Ready: Kubernetes %s", name, c.Status.Version)
			return true, nil
		}
		why = ready.Reason + ": " + ready.Message
		tell("%s is not Ready yet: %s", name, why)
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("cluster %s is registered but not Ready (%s): %w", name, why, err)
	}
	return nil
}
