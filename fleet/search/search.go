// Package search finds objects of any kind in all members, through the subresource clusters/proxy, with the rights that a
// user of Atoll has on it.
package search

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/names"
)

// concurrency is how many clusters are asked at the same time.
const concurrency = 32

// Query selects objects.
type Query struct {
	// Kind has any form that kubectl accepts: deploy, deployments.apps, Deployment.
	Kind string
	// Name and Namespace are of the objects. "" means all.
	Name, Namespace string
	Selector        string
	// Clusters are asked. None means all that have joined.
	Clusters []string
	// Objects asks for whole objects instead of rows.
	Objects bool
	// Timeout is how long a cluster may take.
	Timeout time.Duration
}

// Found is the answer of one cluster.
type Found struct {
	Cluster string
	// Kind is the one that the cluster serves under the name in the query.
	Kind       schema.GroupVersionKind
	Namespaced bool
	Columns    []metav1.TableColumnDefinition
	Rows       []Row
	// Objects have the cluster in their annotation fleet.atoll.dev/cluster. They are set only for a query for objects.
	Objects []unstructured.Unstructured
	// Err is why there is no answer. ErrNoKind is none that a user has to know of, if other clusters serve the kind.
	Err error
}

// Row is an object as its cluster prints it.
type Row struct {
	Cluster, Namespace, Name string
	Cells                    []any // by Columns
}

// ErrNoKind is returned for a cluster that does not serve the kind.
var ErrNoKind = errors.New("it does not serve the kind")

// Run asks the clusters, and returns their answers by the names of the clusters. config is the user's access to Atoll.
func Run(ctx context.Context, config *rest.Config, q Query) ([]Found, error) {
	clusters, err := clustersOf(ctx, config, q.Clusters)
	if err != nil {
		return nil, err
	}
	atoll, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of Atoll: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1 // Atoll has flow control
	fleet.BoundAnswers(config)
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	found := make([]Found, len(clusters))
	var group errgroup.Group
	group.SetLimit(concurrency)
	for i, name := range clusters {
		group.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, q.Timeout, fmt.Errorf("it did not answer within %s", q.Timeout))
			defer cancel()
			to := rest.CopyConfig(config)
			to.Host = atoll.JoinPath("apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.ClusterResource.Resource, name, "proxy").String()
			m := member{name, to, &http.Client{Transport: during{ctx, transport}}}
			found[i] = m.search(ctx, q)
			found[i].Cluster, found[i].Err = name, plain(ctx, name, found[i].Err)
			return nil
		})
	}
	_ = group.Wait() // each cluster has its own error
	return found, ctx.Err()
}

// clustersOf returns the clusters to ask. A user with rights on named clusters only may have none to list them.
func clustersOf(ctx context.Context, config *rest.Config, asked []string) ([]string, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	asked = slices.Compact(slices.Sorted(slices.Values(asked)))
	list, err := client.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if apierrors.IsForbidden(err) && len(asked) > 0 {
		return asked, nil
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list the clusters: %w: name those on which you have rights with --clusters", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list the clusters: %w", err)
	}
	var joined []string
	for _, item := range list.Items {
		joined = append(joined, item.GetName())
	}
	for _, name := range asked {
		if !slices.Contains(joined, name) {
			return nil, names.NoSuchCluster(name, joined)
		}
	}
	if len(asked) > 0 {
		return asked, nil
	}
	if len(joined) == 0 {
		return nil, errors.New("no cluster has joined: run `atoll join NAME --kubeconfig FILE` first")
	}
	slices.Sort(joined)
	return joined, nil
}

// during makes all requests of a client end with a context: those of discovery have none of their own. It returns refusals as
// errors with their message, which client-go's discovery drops.
type during struct {
	ctx  context.Context
	next http.RoundTripper
}

func (d during) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r.WithContext(d.ctx))
	if err != nil || !isRefusal(answer.StatusCode) {
		return answer, err
	}
	defer answer.Body.Close()
	const most = 64 << 10
	body, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return nil, err
	}
	status := &metav1.Status{}
	if err := json.Unmarshal(body, status); err != nil || status.Kind != "Status" || status.Message == "" {
		return nil, fmt.Errorf("the answer is %s, and no message of a Kubernetes API server", answer.Status)
	}
	return nil, apierrors.FromObject(status)
}

// isRefusal reports whether an answer is an error from which client-go does not continue by itself, as it does where discovery
// finds no other form of a document, or where there are too many requests.
func isRefusal(code int) bool {
	switch code {
	case http.StatusNotFound, http.StatusNotAcceptable, http.StatusTooManyRequests:
		return false
	}
	return code >= http.StatusBadRequest
}

// plain returns an error for a line that begins with the name of the cluster.
func plain(ctx context.Context, cluster string, err error) error {
	if err == nil || errors.Is(err, ErrNoKind) {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	const most = 500
	text, _, _ := strings.Cut(strings.TrimSpace(reason(err)), "\n")
	text = strings.TrimPrefix(text, "cluster "+cluster+" ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return errors.New(text)
}

// reason is an error without the request that it is about.
func reason(err error) string {
	if of := (*url.Error)(nil); errors.As(err, &of) {
		return of.Err.Error()
	}
	return err.Error()
}
