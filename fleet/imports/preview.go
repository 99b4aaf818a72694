package imports

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// previewReaders is how many members a preview reads at once. Of the members that serve the
	// same types it tries previewAttempts until one responds.
	previewReaders  = 8
	previewAttempts = 3
	// previewTimeout bounds the read of one member.
	previewTimeout = 10 * time.Second
	// reportsPageSize is how many syncers' reports are read per request: each may be a
	// megabyte.
	reportsPageSize = 20
)

// ReadMembers reads the members' fields without a controller, such as for a preview. It reads
// one of the members whose status reports the same types digest. It returns the members that
// could not be read, with the reason. It ignores members that are not Ready; for Clusters in
// mode Pull see ReadReports. connect returns the client configuration of a member.
func (f *Fields) ReadMembers(ctx context.Context, clusters []*v1alpha1.Cluster, connect func(context.Context, string) (*rest.Config, error)) (unread map[string]error) {
	alike := map[string][]*v1alpha1.Cluster{}
	for _, c := range clusters {
		key := c.Name
		if c.Status.Types != nil && c.Status.Types.Digest != "" {
			key = "as " + c.Status.Types.Digest
		}
		alike[key] = append(alike[key], c)
	}
	unread = map[string]error{}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(previewReaders)
	for _, some := range alike {
		group.Go(func() error {
			ready, err := f.readOneOf(ctx, some, connect)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				for _, name := range ready {
					unread[name] = err
				}
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
	return unread
}

// readOneOf reads one of several members that serve the same types, on behalf of all of them.
// It returns the names of the Ready members among them.
func (f *Fields) readOneOf(ctx context.Context, alike []*v1alpha1.Cluster, connect func(context.Context, string) (*rest.Config, error)) (ready []string, err error) {
	for _, c := range alike {
		if !c.InPullMode() && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady) {
			ready = append(ready, c.Name)
		}
	}
	for _, name := range ready[:min(len(ready), previewAttempts)] {
		if err = f.readMember(ctx, name, connect); err == nil {
			f.copyTo(name, alike)
			return ready, nil
		}
	}
	return ready, err
}

func (f *Fields) readMember(ctx context.Context, name string, connect func(context.Context, string) (*rest.Config, error)) error {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	member, err := connect(ctx, name)
	if err != nil {
		return err
	}
	w, err := newMemberClients(member)
	if err != nil {
		return fmt.Errorf("create a client for cluster %s: %w", name, err)
	}
	index, err := w.openapi.index(ctx)
	if err == nil {
		_, err = f.refresh(ctx, name, w.openapi, index)
	}
	if err != nil {
		return fmt.Errorf("read the types of cluster %s: %w", name, err)
	}
	return nil
}

// copyTo sets the documents of one member for other clusters.
func (f *Fields) copyTo(as string, clusters []*v1alpha1.Cluster) {
	f.mu.Lock()
	known := f.members[as]
	f.mu.Unlock()
	for _, c := range clusters {
		f.set(c.Name, known)
	}
}

// ReadReports reads the reports of syncers for Clusters in mode Pull, without a controller.
func (f *Fields) ReadReports(ctx context.Context, clusters []*v1alpha1.Cluster, client dynamic.Interface) error {
	if !slices.ContainsFunc(clusters, (*v1alpha1.Cluster).InPullMode) {
		return nil
	}
	reports := map[string][]*report{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.Resource(configMaps()).Namespace(v1alpha1.SystemNamespace).List(ctx, o)
	})
	pages.PageSize = reportsPageSize
	err := pages.EachListItem(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ReportedTypesLabel}, func(item runtime.Object) error {
		held, err := cacheReport(item)
		if r, ok := held.(*report); ok {
			reports[r.cluster] = append(reports[r.cluster], r)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the syncers' reports of their clusters' types: list ConfigMaps in namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	read := newReportCache()
	for _, c := range clusters {
		if !c.InPullMode() {
			continue
		}
		list, parts, state := ofCluster(reports[c.Name], c)
		if _, documents := read.read(c.Name, state, list, parts); documents != nil {
			f.adopt(c.Name, documents)
		}
	}
	return nil
}
