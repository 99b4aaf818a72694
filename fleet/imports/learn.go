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
	readers  = 8
	attempts = 3
	// previewTimeout bounds the read of one member.
	answer = 10 * time.Second
	// reportsPageSize is how many syncers' reports are read per request: each may be a
	// megabyte.
	reportsAtOnce = 20
)

// ReadMembers reads the members' fields without a controller, such as for a preview. It reads
// one of the members whose status reports the same types digest. It returns the members that
// could not be read, with the reason. It ignores members that are not Ready; for Clusters in
// mode Pull see ReadReports. connect returns the client configuration of a member.
func (f *Fields) Learn(ctx context.Context, clusters []*v1alpha1.Cluster, reach func(context.Context, string) (*rest.Config, error)) (unread map[string]error) {
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
	group.SetLimit(readers)
	for _, some := range alike {
		group.Go(func() error {
			asked, err := f.learnOne(ctx, some, reach)
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				for _, name := range asked {
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
func (f *Fields) learnOne(ctx context.Context, alike []*v1alpha1.Cluster, reach func(context.Context, string) (*rest.Config, error)) (asked []string, err error) {
	for _, c := range alike {
		if !c.Pulls() && meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ClusterReady) {
			asked = append(asked, c.Name)
		}
	}
	for _, name := range asked[:min(len(asked), attempts)] {
		if err = f.readMember(ctx, name, reach); err == nil {
			f.same(name, alike)
			return asked, nil
		}
	}
	return asked, err
}

func (f *Fields) readMember(ctx context.Context, name string, reach func(context.Context, string) (*rest.Config, error)) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	member, err := reach(ctx, name)
	if err != nil {
		return err
	}
	w, err := wayOver(member)
	if err != nil {
		return fmt.Errorf("create a client for cluster %s: %w", name, err)
	}
	index, err := w.openapi.index(ctx)
	if err == nil {
		_, err = f.pull(ctx, name, w.openapi, index)
	}
	if err != nil {
		return fmt.Errorf("read the types of cluster %s: %w", name, err)
	}
	return nil
}

// copyTo sets the documents of one member for other clusters.
func (f *Fields) same(as string, clusters []*v1alpha1.Cluster) {
	f.mu.Lock()
	known := f.members[as]
	f.mu.Unlock()
	for _, c := range clusters {
		f.set(c.Name, known)
	}
}

// ReadReports reads the reports of syncers for Clusters in mode Pull, without a controller.
func (f *Fields) LearnReported(ctx context.Context, clusters []*v1alpha1.Cluster, client dynamic.Interface) error {
	if !slices.ContainsFunc(clusters, (*v1alpha1.Cluster).Pulls) {
		return nil
	}
	reports := map[string][]*report{}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.Resource(configMaps()).Namespace(v1alpha1.SystemNamespace).List(ctx, o)
	})
	pages.PageSize = reportsAtOnce
	err := pages.EachListItem(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ReportedTypesLabel}, func(item runtime.Object) error {
		held, err := slimReport(item)
		if r, ok := held.(*report); ok {
			reports[r.cluster] = append(reports[r.cluster], r)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the syncers' reports of their clusters' types: list ConfigMaps in namespace %s: %w", v1alpha1.SystemNamespace, err)
	}
	read := newLibrary()
	for _, c := range clusters {
		if !c.Pulls() {
			continue
		}
		list, parts, state := ofCluster(reports[c.Name], c)
		if _, documents := read.take(c.Name, state, list, parts); documents != nil {
			f.adopt(c.Name, documents)
		}
	}
	return nil
}
