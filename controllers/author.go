package controllers

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Author is the user who wrote an object, as the server recorded it. A controller that acts on what the
// object says does so with the author's rights.
type Author struct {
	Username, UID string
	Groups        []string
}

type authorKey struct{}

// ErrNoAuthor and ErrControlPlaneAuthor are returned for authors in whose name no request may be made.
var (
	ErrNoAuthor           = errors.New("its author is not recorded")
	ErrControlPlaneAuthor = errors.New("its author is a part of the control plane")
)

// WithAuthor returns a context whose requests have the author's rights. Parts of the control plane are
// no authors: they have all rights, and are not subject to quotas.
func WithAuthor(ctx context.Context, author Author) (context.Context, error) {
	switch {
	case author.Username == "":
		return nil, ErrNoAuthor
	case strings.HasPrefix(author.Username, "atoll:") || author.Username == "system:apiserver":
		return nil, ErrControlPlaneAuthor
	}
	return context.WithValue(ctx, authorKey{}, author), nil
}

// asAuthor sends each request as the author in its context. A request without one fails: it would have
// all rights. One transport serves all authors, because client-go keeps the transports that it makes.
type asAuthor struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a asAuthor) RoundTrip(r *http.Request) (*http.Response, error) {
	author, ok := r.Context().Value(authorKey{}).(Author)
	if !ok {
		return nil, errors.New("a request without an author")
	}
	as := transport.ImpersonationConfig{UserName: author.Username, UID: author.UID, Groups: author.Groups}
	return transport.NewImpersonatingRoundTripper(as, a.next).RoundTrip(r)
}

// NewAsAuthor returns a client whose requests are made as the author in their context. config must be
// allowed to impersonate users. The audit log names the author as the impersonated user, and userAgent.
func NewAsAuthor(config *rest.Config, userAgent string) (dynamic.Interface, error) {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{}
	config.QPS, config.Burst = -1, -1 // the API has priority and fairness
	config.UserAgent = userAgent
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return asAuthor{next} })
	return dynamic.NewForConfig(config)
}
