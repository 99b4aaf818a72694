package workspaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/responsewriter"

	"github.com/atoll-dev/atoll/apiserver/merged"
)

// customRequest is a list or watch of custom resources in workspaces with different definitions of them.
//
// The storage of a custom resource belongs to a version of one definition. Its server finds it: a list request to that server, with the
// selectors of this one, is answered by the storage with itself (findKey) instead of objects. So the definition of each workspace decides whether
// it serves the version, how objects are decoded, and what field selectors mean.
type customRequest struct {
	resource schema.GroupResource
	info     request.RequestInfo
	query    url.Values
}

func newCustomRequest(r *http.Request, info *request.RequestInfo) *customRequest {
	list := *info
	list.Verb, list.Name = "list", ""
	list.Path = "/apis/" + info.APIGroup + "/" + info.APIVersion + "/" + info.Resource
	if info.Namespace != "" {
		list.Path = "/apis/" + info.APIGroup + "/" + info.APIVersion + "/namespaces/" + info.Namespace + "/" + info.Resource
	}
	query := url.Values{}
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		if has := r.URL.Query()[name]; len(has) > 0 {
			query[name] = has
		}
	}
	return &customRequest{schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, list, query}
}

// definer returns the open workspace whose server serves the resource in another one, and the context of a request to it. release ends its use.
// Errors: ErrNotFound if the workspace does not have the resource now.
func (q *customRequest) definer(ctx context.Context, c *chain, w *Workspace) (in context.Context, by *Workspace, release func(), err error) {
	b, err := c.bindingOf(ctx, w, q.resource.Group)
	if err != nil {
		return nil, nil, nil, err
	}
	if b != nil {
		in, exporter, release, err := b.Open(ctx)
		if err != nil {
			return nil, nil, nil, err
		}
		if b.Deleting || !exporter.provides(q.resource.Resource) {
			release()
			return nil, nil, nil, ErrNotFound
		}
		return context.WithValue(in, exporterKey{}, exporter.Workspace), exporter.Workspace, release, nil
	}
	// Its server is started only if there is a definition.
	found, err := w.client.KV.Get(ctx, definitionsPrefix+q.resource.Resource+"."+q.resource.Group, clientv3.WithCountOnly())
	if err != nil {
		return nil, nil, nil, fmt.Errorf("look for the definition of %s: %w", q.resource, err)
	}
	if found.Count == 0 {
		return nil, nil, nil, ErrNotFound
	}
	return ctx, w, func() {}, nil
}

// source returns where a workspace has the objects.
// Errors: ErrNotFound if it does not serve the resource in this version now; those of the API if it does not know a field selector.
func (q *customRequest) source(ctx context.Context, c *chain, w *Workspace, path string) (merged.Source, error) {
	in, by, release, err := q.definer(withWorkspace(ctx, w, path), c, w)
	if err != nil {
		return merged.Source{}, err
	}
	from, err := q.find(in, c, w, by)
	if err != nil {
		release()
		return merged.Source{}, err
	}
	from.Release = release
	return from, nil
}

// find asks the server of a definition for its storage.
func (q *customRequest) find(ctx context.Context, c *chain, w, by *Workspace) (merged.Source, error) {
	found := &foundStore{resource: q.resource}
	info := q.info
	ctx = context.WithValue(request.WithRequestInfo(ctx, &info), findKey{}, found)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, info.Path+"?"+q.query.Encode(), http.NoBody)
	if err != nil {
		return merged.Source{}, err
	}
	r.Header.Set("Accept", "application/json")
	answer := responsewriter.NewInMemoryResponseWriter()
	c.serveDefined(answer, r, by, true)
	if found.store != nil {
		from, err := sourceIn(w, found.store)
		from.Selection = &found.selection
		return from, err
	}
	if answer.RespCode() == http.StatusNotFound {
		return merged.Source{}, ErrNotFound
	}
	var status metav1.Status
	if json.Unmarshal(answer.Data(), &status) == nil && status.Code >= 400 && status.Code < 500 {
		return merged.Source{}, &apierrors.StatusError{ErrStatus: status}
	}
	return merged.Source{}, fmt.Errorf("the storage of %s cannot be found: the answer is %d", q.resource, answer.RespCode())
}

// findKey is the key, in the context of a request, of the foundStore that the storage of the resource fills.
type findKey struct{}

type foundStore struct {
	resource  schema.GroupResource
	store     *requestStore
	selection storage.SelectionPredicate
}

// errFound is the answer of a storage that was only to be found.
var errFound = errors.New("the storage was found")

// find records the storage if the request of the context is to find it.
func (s *requestStore) find(ctx context.Context, opts storage.ListOptions) bool {
	found, _ := ctx.Value(findKey{}).(*foundStore)
	if found == nil || found.resource != s.group {
		return false
	}
	found.store, found.selection = s, opts.Predicate
	return true
}

// serveCustomTree serves a list or watch of custom resources. The definition of the first workspace that has one decides how they are
// printed.
func (c *chain) serveCustomTree(w http.ResponseWriter, r *http.Request, t *tree, info *request.RequestInfo) error {
	q := newCustomRequest(r, info)
	of := treeScope{c, t, q.resource, q}
	all, err := of.Members(r.Context())
	if err != nil {
		return err
	}
	slices.SortFunc(all, merged.ByPath)
	for _, ref := range all {
		served, err := c.serveFirst(w, r, of, ref)
		if served || err != nil {
			return err
		}
	}
	status := apierrors.NewGenericServerResponse(http.StatusNotFound, "", q.resource, "", "", 0, false)
	status.ErrStatus.Message = fmt.Sprintf("no workspace below %s serves %s in version %s now: use a group, version and resource that one of them defines or is bound to",
		t.at(), q.resource, info.APIVersion)
	return status
}

// serveFirst serves the request by the definition of a workspace, if that has the resource.
func (c *chain) serveFirst(w http.ResponseWriter, r *http.Request, of treeScope, ref merged.Ref) (served bool, err error) {
	in, member, leave, err := c.enter(r.Context(), of, ref)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer leave()
	in, by, release, err := of.custom.definer(withWorkspace(in, member, ref.Path), c, member)
	if err == nil {
		defer release()
		_, err = of.custom.find(in, c, member, by)
	}
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.serveDefined(w, r.WithContext(c.over(in, of, of.resource)), by, true)
	return true, nil
}
