package imports

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// ReportStore stores the types that syncers of clusters in mode Pull report, so that the
// controller finds them, whichever server it runs on. The caller authenticates the cluster: a
// report is stored for that cluster and affects no other. An invalid report is a BadRequest.
type ReportStore struct{}

// StoreTypes stores which groups a cluster serves, and returns what else is requested.
func (ReportStore) StoreTypes(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, report fleet.TypesReport) (fleet.TypesWanted, error) {
	var wanted fleet.TypesWanted
	if err := checkList(&report); err != nil {
		return wanted, apierrors.NewBadRequest(err.Error())
	}
	for group, listed := range report.Groups {
		if digest, stored := storedDigest(session, cluster, group); !stored || digest != listed.Digest {
			wanted.Missing = append(wanted.Missing, group)
		}
	}
	slices.Sort(wanted.Missing)
	policies, err := session.Dynamic.Resource(v1alpha1.TypePolicyResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return wanted, fmt.Errorf("read the TypePolicies: %w", err)
	}
	var all []*v1alpha1.TypePolicy
	for i := range policies.Items {
		p := &v1alpha1.TypePolicy{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(policies.Items[i].Object, p); err != nil {
			return wanted, fmt.Errorf("read TypePolicy %s: %w", policies.Items[i].GetName(), err)
		}
		all = append(all, p)
	}
	for _, group := range report.Others {
		if _, inFull := v1alpha1.PolicyFor(group, all); inFull && !ownGroup(group) {
			wanted.InFull = append(wanted.InFull, group)
		}
	}
	report.Others = nil // not part of the stored state
	return wanted, storeList(ctx, session, cluster, report)
}

// checkList validates the size of a report.
func checkList(report *fleet.TypesReport) error {
	report.Message = truncate(report.Message)
	if len(report.Groups) > maxGroups || len(report.Others) > maxGroups {
		return fmt.Errorf("a cluster reports at most %d groups", maxGroups)
	}
	size := 0
	for group, listed := range report.Groups {
		if len(group) > 253 || len(listed.Digest) > 64 {
			return errors.New("invalid list of groups: each entry is a group name with a digest")
		}
		if listed.Size < 0 || listed.Size > maxGroupBytes {
			return fmt.Errorf("group %q has %d bytes: a group has at most %d", group, listed.Size, maxGroupBytes)
		}
		size += listed.Size
	}
	if size > maxReportBytes {
		return fmt.Errorf("the groups have %d bytes together: a cluster reports at most %d", size, maxReportBytes)
	}
	return nil
}

// storedDigest returns the digest of the stored content of a group.
func storedDigest(session *fleet.Session, cluster *v1alpha1.Cluster, group string) (string, bool) {
	name := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: v1alpha1.GroupReportName(cluster.Name, group)}
	stored, ok := session.Objects.Get(kschema.GroupKind{Kind: "ConfigMap"}, name)
	if !ok || !slices.ContainsFunc(stored.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == cluster.UID }) {
		return "", false
	}
	return stored.GetAnnotations()[v1alpha1.ReportedDigestAnnotation], true
}

// storeList writes the list of groups if it has changed or was not confirmed for
// refreshInterval.
func storeList(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, report fleet.TypesReport) error {
	data, err := json.Marshal(report)
	if err != nil {
		return err
	}
	now := session.Clock.Now().UTC()
	name := v1alpha1.TypesReportName(cluster.Name)
	was, err := session.Dynamic.Resource(configMaps()).Namespace(v1alpha1.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		listed, _, _ := unstructured.NestedString(was.Object, "data", listKey)
		at, err := time.Parse(time.RFC3339, was.GetAnnotations()[v1alpha1.ReportedTimeAnnotation])
		owners := was.GetOwnerReferences()
		if err == nil && listed == string(data) && now.Sub(at) < refreshInterval && len(owners) == 1 && owners[0].UID == cluster.UID {
			return nil
		}
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the stored types report of cluster %s: %w", cluster.Name, err)
	}
	return storeReport(ctx, session, cluster, name, map[string]string{v1alpha1.ReportedTimeAnnotation: now.Format(time.RFC3339)},
		"data", map[string]any{listKey: string(data)})
}

// StoreGroup stores the content of a group that the cluster has listed.
func (ReportStore) StoreGroup(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, report fleet.GroupReport) error {
	if len(report.Content) > maxGroupBytes {
		return apierrors.NewBadRequest(fmt.Sprintf("group %q has %d bytes: a group has at most %d", report.Group, len(report.Content), maxGroupBytes))
	}
	data, digest, err := unpack(report.Content)
	if err == nil {
		_, err = readGroup(report.Group, data)
	}
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("group %q: %v", report.Group, err))
	}
	u, err := session.Dynamic.Resource(configMaps()).Namespace(v1alpha1.SystemNamespace).Get(ctx, v1alpha1.TypesReportName(cluster.Name), metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("read the stored types report of cluster %s: %w", cluster.Name, err)
	}
	var list fleet.TypesReport
	if err == nil {
		listed, _, _ := unstructured.NestedString(u.Object, "data", listKey)
		if err := json.Unmarshal([]byte(listed), &list); err != nil {
			return fmt.Errorf("read the stored types report of cluster %s: %w", cluster.Name, err)
		}
	}
	if listed, ok := list.Groups[report.Group]; !ok || listed.Digest != digest || listed.Size != len(report.Content) {
		return apierrors.NewBadRequest(fmt.Sprintf("group %q is not listed with %d bytes and digest %s: report the list of groups first", report.Group, len(report.Content), digest))
	}
	return storeReport(ctx, session, cluster, v1alpha1.GroupReportName(cluster.Name, report.Group),
		map[string]string{v1alpha1.ReportedGroupAnnotation: report.Group, v1alpha1.ReportedDigestAnnotation: digest},
		"binaryData", map[string]any{contentKey: base64.StdEncoding.EncodeToString(report.Content)})
}

// storeReport writes a ConfigMap that is owned by the Cluster.
func storeReport(ctx context.Context, session *fleet.Session, cluster *v1alpha1.Cluster, name string, annotations map[string]string, field string, value map[string]any) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", field: value}}
	u.SetNamespace(v1alpha1.SystemNamespace)
	u.SetName(name)
	u.SetLabels(map[string]string{v1alpha1.ReportedTypesLabel: cluster.Name})
	u.SetAnnotations(annotations)
	u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}})
	how := metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
	api := session.Dynamic.Resource(configMaps()).Namespace(v1alpha1.SystemNamespace)
	_, err := api.Apply(ctx, name, u, how)
	if apierrors.IsNotFound(err) {
		if err = controllers.EnsureNamespace(ctx, session.Kube, v1alpha1.SystemNamespace); err == nil {
			_, err = api.Apply(ctx, name, u, how)
		}
	}
	if err != nil {
		return fmt.Errorf("store the types report of cluster %s: %w", cluster.Name, err)
	}
	return nil
}
