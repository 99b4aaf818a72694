package scaleschedules

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

type authorKey struct{}

// withAuthor returns a context whose requests have the author's rights.
func withAuthor(ctx context.Context, author *v1alpha1.ScaleScheduleAuthor) (context.Context, error) {
	if author == nil || author.Username == "" {
		return nil, refuse(v1alpha1.ReasonScaleForbidden, errors.New("spec.author is not set: change the spec, so that the server records its author"))
	}
	// These have all rights, and are not subject to quotas.
	if strings.HasPrefix(author.Username, "atoll:") || author.Username == "system:apiserver" {
		return nil, refuse(v1alpha1.ReasonScaleForbidden, errors.New("the author is a part of the control plane: have a user change the spec"))
	}
	return context.WithValue(ctx, authorKey{}, author), nil
}

// asAuthor sends each request as the author in its context. A request without one fails: it would have
// all rights. One transport serves all authors, because client-go keeps the transports that it makes.
type asAuthor struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a asAuthor) RoundTrip(r *http.Request) (*http.Response, error) {
	author, ok := r.Context().Value(authorKey{}).(*v1alpha1.ScaleScheduleAuthor)
	if !ok {
		return nil, errors.New("a request of a schedule without an author")
	}
	as := transport.ImpersonationConfig{UserName: author.Username, UID: author.UID, Groups: author.Groups}
	return transport.NewImpersonatingRoundTripper(as, a.next).RoundTrip(r)
}

// newAuthors returns a client whose requests are made as the author in their context.
func newAuthors(config *rest.Config) (dynamic.Interface, error) {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{}
	config.QPS, config.Burst = -1, -1 // the API has priority and fairness
	config.UserAgent = FieldManager
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asAuthor{next} })
	return dynamic.NewForConfig(config)
}
