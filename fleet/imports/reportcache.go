package imports

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/fleet"
)

// configMaps is the resource that stores reports.
func configMaps() kschema.GroupVersionResource {
	return kschema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// Keys in the ConfigMaps.
const (
	listKey    = "groups.json"
	contentKey = "group.json.gz"
)

// report is a ConfigMap of a syncer's report in the cache: a list of groups, or the content of
// one. A thousand members of one release report the same content: it is kept once.
type report struct {
	metav1.ObjectMeta
	cluster string
	owner   types.UID // UID of the Cluster
	group   string
	list    *fleet.TypesReport // nil for the content of a group
	at      time.Time
	content unique.Handle[string]
}

func watchReports(client dynamic.Interface) controllers.Cache[report] {
	return controllers.NewCache[report](client, configMaps(), controllers.CacheOptions{Transform: cacheReport, Namespace: v1alpha1.SystemNamespace,
		Select:   func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.ReportedTypesLabel },
		Indexers: cache.Indexers{byLocation: indexed(func(r *report) string { return r.cluster })}})
}

// cacheReport decodes a report for the cache. One that cannot be decoded is left as it is, and
// lookups ignore it: then the previously known types remain.
func cacheReport(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	out := &report{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
		cluster: u.GetLabels()[v1alpha1.ReportedTypesLabel], group: u.GetAnnotations()[v1alpha1.ReportedGroupAnnotation]}
	for _, o := range u.GetOwnerReferences() {
		if o.Kind == "Cluster" && o.Name == out.cluster {
			out.owner = o.UID
		}
	}
	if out.Name != v1alpha1.TypesReportName(out.cluster) {
		encoded, _, _ := unstructured.NestedString(u.Object, "binaryData", contentKey)
		content, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return obj, nil
		}
		out.content = unique.Make(string(content))
		return out, nil
	}
	listed, _, _ := unstructured.NestedString(u.Object, "data", listKey)
	out.list = &fleet.TypesReport{}
	at, err := time.Parse(time.RFC3339, u.GetAnnotations()[v1alpha1.ReportedTimeAnnotation])
	if err != nil || json.Unmarshal([]byte(listed), out.list) != nil {
		return obj, nil
	}
	out.at = at
	return out, nil
}

// reportCache holds decoded reports, each distinct content once for all clusters that report
// it. A cluster that lists the digest of another cluster's content affects only itself.
type reportCache struct {
	mu       sync.Mutex
	clusters map[string]*clusterReport
	groups   map[groupID]*groupTypes
}

// groupID identifies the content of a group.
type groupID struct{ group, digest string }

// clusterReport is the decoded report of one cluster's syncer.
type clusterReport struct {
	state  string // identifies the state of all its ConfigMaps
	groups []groupID
	seen   snapshot
}

func newReportCache() *reportCache {
	return &reportCache{clusters: map[string]*clusterReport{}, groups: map[groupID]*groupTypes{}}
}

// forget removes a cluster, and the contents that no other cluster uses.
func (l *reportCache) forget(cluster string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clusters, cluster)
	l.removeUnused()
}

// removeUnused removes the contents that no cluster uses any more. The caller holds mu.
func (l *reportCache) removeUnused() {
	used := map[groupID]bool{}
	for _, s := range l.clusters {
		for _, t := range s.groups {
			used[t] = true
		}
	}
	maps.DeleteFunc(l.groups, func(t groupID, _ *groupTypes) bool { return !used[t] })
}

// read decodes the reports of a cluster if their state is new, and returns its types. While a
// listed group is missing, these are the previous types. documents is not nil if the documents
// have changed.
func (l *reportCache) read(cluster, state string, list *report, parts map[string]*report) (seen snapshot, documents map[kschema.GroupVersion]*document) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.clusters[cluster]
	if last == nil {
		last = &clusterReport{}
	}
	if list == nil || state == last.state {
		return last.seen, nil
	}
	if message := list.list.Message; message != "" {
		// Groups that are not listed now may still be served.
		now := &clusterReport{state: state, groups: last.groups, seen: last.seen}
		now.seen.err = reportedError(message)
		l.clusters[cluster] = now
		return now.seen, nil
	}
	now, err := l.decode(list, parts)
	switch {
	case err != nil:
		now = &clusterReport{groups: last.groups, seen: last.seen}
		now.seen.err = reportedError(fmt.Sprintf("the report of cluster %s's syncer is invalid; showing the last known types: %v; run a syncer of the same version as the servers", cluster, err))
	case now == nil:
		return last.seen, nil
	}
	now.state = state
	l.clusters[cluster] = now
	l.removeUnused()
	if err != nil {
		return now.seen, nil
	}
	documents = map[kschema.GroupVersion]*document{}
	for _, t := range now.groups {
		maps.Copy(documents, l.groups[t].documents)
	}
	return now.seen, documents
}

// decode decodes the listed groups. It returns nil while the content of a group is missing or
// does not match its digest: the ConfigMaps are written one after the other. The caller holds
// mu.
func (l *reportCache) decode(list *report, parts map[string]*report) (*clusterReport, error) {
	out := &clusterReport{}
	types, fields := map[kschema.GroupVersionResource]servedType{}, map[kschema.GroupVersion]string{}
	size := 0
	for name, listed := range list.list.Groups {
		if parts[name] == nil {
			return nil, nil
		}
		is := groupID{name, listed.Digest}
		if l.groups[is] == nil {
			data, digest, err := unpack([]byte(parts[name].content.Value()))
			if err == nil && digest != listed.Digest {
				return nil, nil
			}
			if err == nil {
				l.groups[is], err = readGroup(name, data)
			}
			if err != nil {
				delete(l.groups, is)
				return nil, fmt.Errorf("group %q: %w", name, err)
			}
		}
		g := l.groups[is]
		if size += g.size; size > maxUnpackedBytes {
			return nil, fmt.Errorf("the groups exceed %d bytes", maxUnpackedBytes)
		}
		out.groups = append(out.groups, is)
		maps.Copy(types, g.types)
		for gv, doc := range g.documents {
			fields[gv] = doc.digest
		}
	}
	out.seen = snapshot{complete: true, types: types, digest: digestTypes(types, fields), at: list.at}
	return out, nil
}

// reported returns the types that the syncer of a cluster in mode Pull has read.
func (c *controller) reported(cluster *v1alpha1.Cluster) snapshot {
	list, parts, state := c.reportsOf(cluster)
	seen, documents := c.reportCache.read(cluster.Name, state, list, parts)
	if documents != nil {
		c.fields.adopt(cluster.Name, documents)
	}
	// Types that no policy requests are omitted, as a watcher of this server would.
	allowed := map[kschema.GroupVersionResource]servedType{}
	for gvr, t := range seen.types {
		if t.source == v1alpha1.FromCRD || c.inFull(gvr.Group) {
			allowed[gvr] = t
		}
	}
	seen.types = allowed
	return seen
}

// reportsOf returns the reports of a cluster, excluding those of a previous cluster of the same
// name, and an identifier of their state.
func (c *controller) reportsOf(cluster *v1alpha1.Cluster) (list *report, parts map[string]*report, state string) {
	return ofCluster(c.reports.By(byLocation, cluster.Name), cluster)
}

func ofCluster(reports []*report, cluster *v1alpha1.Cluster) (list *report, parts map[string]*report, state string) {
	parts = map[string]*report{}
	var versions []string
	for _, r := range reports {
		switch {
		case r.owner != cluster.UID:
			continue
		case r.list != nil:
			list = r
		default:
			parts[r.group] = r
		}
		versions = append(versions, r.Name+"="+r.ResourceVersion)
	}
	slices.Sort(versions)
	return list, parts, strings.Join(versions, " ")
}

// sweepReports deletes obsolete reports: those of groups that are no longer listed, and all of
// them if the cluster is no longer in mode Pull.
func (c *controller) sweepReports(ctx context.Context, cluster *v1alpha1.Cluster) error {
	list, _, _ := c.reportsOf(cluster)
	for _, r := range c.reports.By(byLocation, cluster.Name) {
		if cluster.InPullMode() && (r.list != nil || list == nil) {
			continue
		}
		if cluster.InPullMode() {
			if _, listed := list.list.Groups[r.group]; listed {
				continue
			}
		}
		uid, version := r.UID, r.ResourceVersion
		err := c.Dynamic.Resource(configMaps()).Namespace(r.Namespace).Delete(ctx, r.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		if ignoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete the report %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	return nil
}
