package workspaces

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/util/responsewriter"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// sources are the servers of custom resources that a workspace's discovery is made of.
type sources struct {
	own      *customServer // nil if the workspace defines nothing
	kinds    Kinds         // nil if the workspace has no kinds without definitions
	bound    []boundSource
	releases []func()
}

// boundSource is the server of the exporter of a binding.
type boundSource struct {
	group    string
	exporter Exporter
	*customServer
}

func (s *sources) release() {
	for _, release := range s.releases {
		release()
	}
}

// sourcesOf opens the servers of a workspace and of the exporters of its wanted bindings. An exporter that does not provide a group now
// is omitted. The caller releases them.
func (c *chain) sourcesOf(ctx context.Context, w *Workspace, wanted func(*Binding) bool) (_ *sources, err error) {
	out := &sources{}
	defer func() {
		if err != nil {
			out.release()
		}
	}()
	bindings, err := c.bindings(ctx, w)
	if err != nil {
		return nil, err
	}
	for i := range bindings {
		b := &bindings[i]
		if !wanted(b) {
			continue
		}
		in, exporter, release, err := b.Open(ctx)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open the exporter of %s: %w", b.Group, err)
		}
		out.releases = append(out.releases, release)
		server, err := c.syncedServer(in, exporter.Workspace)
		if err != nil {
			return nil, err
		}
		out.bound = append(out.bound, boundSource{b.Group, exporter, server})
	}
	if out.kinds, err = c.kindsForDiscovery(ctx, w); err != nil {
		return nil, err
	}
	has, err := w.hasDefinitions(ctx)
	if err == nil && has {
		out.own, err = c.syncedServer(ctx, w)
	}
	return out, err
}

func (c *chain) syncedServer(ctx context.Context, w *Workspace) (*customServer, error) {
	server, err := w.custom(c)
	if err == nil {
		err = server.await(ctx)
	}
	return server, err
}

// withOtherGroups returns a document of all groups that has those of bindings too, with the resources that they have, and those of kinds
// without definitions.
func (s *sources) withOtherGroups(groups http.Handler) (aggregated.ResourceManager, error) {
	list, err := groupsOf(groups)
	if err != nil {
		return nil, err
	}
	for _, from := range s.bound {
		theirs, err := groupsOf(from.groups)
		if err != nil {
			return nil, err
		}
		for _, group := range theirs.Items {
			if group.Name == from.group {
				list.Items = append(list.Items, from.exporter.filter(group))
			}
		}
	}
	if s.kinds != nil {
		theirs, err := groupsOf(s.kinds.Discovery())
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, theirs.Items...)
	}
	return managerOf(list.Items), nil
}

// filter returns a group with the resources that consumers have.
func (e Exporter) filter(group apidiscoveryv2.APIGroupDiscovery) apidiscoveryv2.APIGroupDiscovery {
	versions := []apidiscoveryv2.APIVersionDiscovery{}
	for _, version := range group.Versions {
		version.Resources = slices.DeleteFunc(slices.Clone(version.Resources), func(r apidiscoveryv2.APIResourceDiscovery) bool { return !e.provides(r.Resource) })
		if len(version.Resources) > 0 {
			versions = append(versions, version)
		}
	}
	group.Versions = versions
	return group
}

// serveBoundList serves the versions of a group, or the resources of a version, with the resources that consumers have.
func (c *chain) serveBoundList(w http.ResponseWriter, r *http.Request, exporter Exporter) {
	in := r.Clone(r.Context())
	in.Header.Set("Accept", "application/json")
	in.Header.Del("Accept-Encoding")
	part := responsewriter.NewInMemoryResponseWriter()
	c.serveDefined(part, in, exporter.Workspace, true)
	data, list := part.Data(), metav1.APIResourceList{}
	if part.RespCode() == http.StatusOK && json.Unmarshal(data, &list) == nil && list.Kind == "APIResourceList" {
		list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
			resource, _, _ := strings.Cut(r.Name, "/")
			return !exporter.provides(resource)
		})
		if filtered, err := json.Marshal(list); err == nil {
			data = filtered
		}
	}
	w.Header().Set("Content-Type", part.Header().Get("Content-Type"))
	w.WriteHeader(part.RespCode())
	_, _ = w.Write(data)
}

// documents serves the list of OpenAPI documents: the built-in ones, those of the workspace, and those of its bindings.
func (s *sources) documents(builtIn http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		type documents struct {
			Paths map[string]json.RawMessage `json:"paths"`
		}
		all := documents{Paths: map[string]json.RawMessage{}}
		add := func(from http.Handler, group string) bool {
			in := r.Clone(r.Context())
			in.Header.Del("Accept-Encoding")
			in.Header.Del("If-None-Match")
			part, found := responsewriter.NewInMemoryResponseWriter(), documents{}
			from.ServeHTTP(part, in)
			if err := json.Unmarshal(part.Data(), &found); err != nil || part.RespCode() != http.StatusOK {
				return false
			}
			maps.DeleteFunc(found.Paths, func(path string, _ json.RawMessage) bool {
				return group != "" && !strings.HasPrefix(path, "apis/"+group+"/")
			})
			maps.Copy(all.Paths, found.Paths)
			return true
		}
		ok := add(builtIn, "") && (s.own == nil || add(s.own.openAPI, "")) && (s.kinds == nil || add(s.kinds, ""))
		for _, from := range s.bound {
			ok = ok && add(from.openAPI, from.group)
		}
		if !ok {
			answer(w, r, unavailable("the list of OpenAPI documents cannot be read now: retry"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(all)
	})
}

// document returns the handler of the OpenAPI document of a group.
func (s *sources) document(builtIn http.Handler, group string) http.Handler {
	switch {
	case s.kinds != nil && s.kinds.Serves(group):
		return s.kinds
	case len(s.bound) > 0:
		return s.bound[0].openAPI
	case s.own != nil && strings.Contains(group, ".") && !legacyscheme.Scheme.IsGroupRegistered(group):
		return s.own.openAPI
	}
	return builtIn
}
