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
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// configMaps is where reports are kept.
func configMaps() kschema.GroupVersionResource {
	return kschema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
}

// Where in a ConfigMap what is.
const (
	listKey    = "groups.json"
	contentKey = "group.json.gz"
)

// report is a ConfigMap of a syncer's report in the cache: a list of groups, or what is
// in one. A thousand members of one release report the same: it is kept once.
type report struct {
	metav1.ObjectMeta
	cluster string
	owner   types.UID // of the Cluster that it is about
	group   string
	list    *fleet.TypesReport // nil in what is about a group
	at      time.Time
	content unique.Handle[string]
}

func watchReports(client dynamic.Interface) cache.SharedIndexInformer {
	i := dynamicinformer.NewFilteredDynamicInformer(client, configMaps(), v1alpha1.SystemNamespace, 0,
		cache.Indexers{byLocation: indexed(func(r *report) string { return r.cluster })},
		func(o *metav1.ListOptions) { o.LabelSelector = v1alpha1.ReportedTypesLabel }).Informer()
	// It fails only on a running informer, which this one is not.
	if err := i.SetTransform(slimReport); err != nil {
		panic(err)
	}
	return i
}

// slimReport reads a report. One that cannot be read is left as it is, and so never
// found: then the types are as they were last known.
func slimReport(obj any) (any, error) {
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

// library holds what was read of reports, each content once for all clusters that have
// it. A cluster that lists the digest of somebody else's content deceives about itself only.
type library struct {
	mu       sync.Mutex
	clusters map[string]*shelf
	groups   map[title]*group
}

// title identifies a content.
type title struct{ group, digest string }

// shelf is what a cluster's syncer has reported.
type shelf struct {
	state string // of all reports
	has   []title
	seen  snapshot
}

func newLibrary() *library {
	return &library{clusters: map[string]*shelf{}, groups: map[title]*group{}}
}

// forget drops a cluster, and with it what no other has.
func (l *library) forget(cluster string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.clusters, cluster)
	l.release()
}

// release drops what no cluster has any more. mu is held.
func (l *library) release() {
	used := map[title]bool{}
	for _, s := range l.clusters {
		for _, t := range s.has {
			used[t] = true
		}
	}
	maps.DeleteFunc(l.groups, func(t title, _ *group) bool { return !used[t] })
}

// take reads the reports on a cluster, in a state that was not read yet, and gives what
// is known by them. While some of what is listed has not arrived, that is what was known
// before. documents is not nil if there are others than before.
func (l *library) take(cluster, state string, list *report, parts map[string]*report) (seen snapshot, documents map[kschema.GroupVersion]*document) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.clusters[cluster]
	if last == nil {
		last = &shelf{}
	}
	if list == nil || state == last.state {
		return last.seen, nil
	}
	if message := list.list.Message; message != "" {
		// What is not listed now may be there all the same.
		now := &shelf{state: state, has: last.has, seen: last.seen}
		now.seen.trouble = reportedTrouble(message)
		l.clusters[cluster] = now
		return now.seen, nil
	}
	now, err := l.shelve(list, parts)
	switch {
	case err != nil:
		now = &shelf{has: last.has, seen: last.seen}
		now.seen.trouble = reportedTrouble(fmt.Sprintf("what the syncer of cluster %s reports of its types cannot be used, and they are as they were last known: %v; run a syncer of the same version as the servers", cluster, err))
	case now == nil:
		return last.seen, nil
	}
	now.state = state
	l.clusters[cluster] = now
	l.release()
	if err != nil {
		return now.seen, nil
	}
	documents = map[kschema.GroupVersion]*document{}
	for _, t := range now.has {
		maps.Copy(documents, l.groups[t].documents)
	}
	return now.seen, documents
}

// shelve reads what is listed; nil while the content of a group is another than the
// listed one, or missing: they come one after the other. mu is held.
func (l *library) shelve(list *report, parts map[string]*report) (*shelf, error) {
	out := &shelf{}
	types, fields := map[kschema.GroupVersionResource]served{}, map[kschema.GroupVersion]string{}
	size := 0
	for name, listed := range list.list.Groups {
		if parts[name] == nil {
			return nil, nil
		}
		is := title{name, listed.Digest}
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
		if size += g.size; size > mostKept {
			return nil, fmt.Errorf("they are more than %d bytes", mostKept)
		}
		out.has = append(out.has, is)
		maps.Copy(types, g.types)
		for gv, doc := range g.documents {
			fields[gv] = doc.digest
		}
	}
	out.seen = snapshot{whole: true, types: types, digest: digestTypes(types, fields), at: list.at}
	return out, nil
}

// reported gives what the syncer of a cluster in mode Pull has read of its types.
func (c *controller) reported(cluster *v1alpha1.Cluster) snapshot {
	list, parts, state := c.reportsOf(cluster)
	seen, documents := c.read.take(cluster.Name, state, list, parts)
	if documents != nil {
		c.fields.adopt(cluster.Name, documents)
	}
	// What no policy wants to be imported is left out, as it would be by a puller here.
	allowed := map[kschema.GroupVersionResource]served{}
	for gvr, t := range seen.types {
		if t.source == v1alpha1.FromCRD || c.inFull(gvr.Group) {
			allowed[gvr] = t
		}
	}
	seen.types = allowed
	return seen
}

// reportsOf gives the reports on a cluster, but not those on another that had its name,
// and what tells one state of them from another.
func (c *controller) reportsOf(cluster *v1alpha1.Cluster) (list *report, parts map[string]*report, state string) {
	return ofCluster(find[report](c.reports, byLocation, cluster.Name), cluster)
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

// sweepReports deletes what syncers have reported and nobody goes by: of groups that are
// gone, and all of it when the cluster is not in mode Pull any more.
func (c *controller) sweepReports(ctx context.Context, cluster *v1alpha1.Cluster) error {
	list, _, _ := c.reportsOf(cluster)
	for _, r := range find[report](c.reports, byLocation, cluster.Name) {
		if cluster.Pulls() && (r.list != nil || list == nil) {
			continue
		}
		if cluster.Pulls() {
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
