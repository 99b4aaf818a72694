package reach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// ConnectCluster returns a handler that passes a request on to a path of the API of a cluster, with the credentials of the
// cluster's kubeconfig. The answer is passed on as the cluster sends it. If the cluster does not answer, failed gets a Status
// with code 503. The caller has authorized the user.
func (r *Reach) ConnectCluster(ctx context.Context, cluster, path string, failed proxy.ErrorResponder) (http.Handler, error) {
	// The address of the cluster may have a path, below which another cluster's API could be.
	if slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool { return part == "." || part == ".." }) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the path %q has a segment . or ..: name the path in the cluster's API without them", path))
	}
	m, err := r.members.connected(ctx, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewNotFound(v1alpha1.ClusterResource.GroupResource(), cluster)
	case errors.Is(err, errUnreachable):
		return nil, unreachable(cluster, err)
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("there is no connection to cluster %s: %v", cluster, err))
	}
	return m.handler(path, failed), nil
}

func unreachable(cluster string, err error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("cluster %s did not answer: %v: see its condition Ready in `kubectl describe cluster %s`, and try again", cluster, err, cluster))
}

// connected returns the client of a cluster to which a request can be sent now.
func (m *members) connected(ctx context.Context, cluster string) (*member, error) {
	states, err := m.states(ctx)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(states, func(s state) bool { return s.cluster == cluster })
	if at < 0 {
		m.forget(cluster) // or a cluster that has left would be asked for a while
	} else if states[at].silent != nil {
		return nil, states[at].silent
	} else if states[at].pull && states[at].unreached != "" {
		return nil, fmt.Errorf("%s: see that the syncer runs, and with --reach all", states[at].unreached)
	}
	return m.get(ctx, cluster)
}

func (m *members) forget(cluster string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, cluster)
}

// accepted is a transport that fails where a cluster rejects Atoll's credentials. A user who got the answer would take it to
// be about the user's own, and kubectl would have the user log in again.
type accepted struct{ http.RoundTripper }

var errCredentials = errors.New("it rejects the credentials in its kubeconfig (401 Unauthorized)")

func (a accepted) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(r)
	if err == nil && answer.StatusCode == http.StatusUnauthorized {
		answer.Body.Close()
		return nil, errCredentials
	}
	return answer, err
}

// responder answers requests that could not be passed on to a cluster.
type responder struct {
	cluster string
	failed  proxy.ErrorResponder
}

func (f responder) Error(w http.ResponseWriter, r *http.Request, err error) {
	status := unreachable(f.cluster, err)
	if errors.Is(err, errCredentials) {
		status = apierrors.NewServiceUnavailable(fmt.Sprintf("there is no connection to cluster %s: %v: join it again with `atoll join %s --kubeconfig FILE`", f.cluster, err, f.cluster))
	}
	f.failed.Error(w, r, status)
}
