package merged

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
)

// present returns where the keyspaces of all workspaces that have the resource stand now.
func (r Request) present(ctx context.Context, all []Ref) (position, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(OpenedAtOnce)
	var mu sync.Mutex
	at := position{}
	for _, c := range all {
		group.Go(func() error {
			err := r.within(ctx, c, func(ctx context.Context, from Source) error {
				revision, err := from.GetCurrentResourceVersion(ctx)
				mu.Lock()
				defer mu.Unlock()
				at[c.UID] = int64(revision)
				return err
			})
			if errors.Is(err, ErrAbsent) {
				return nil
			}
			return err
		})
	}
	return at, group.Wait()
}

// continuation is a continue token of a list over many workspaces.
type continuation struct {
	// Position is the resourceVersion of the list.
	Position uint64 `json:"position"`
	// UID is the workspace where the next page begins, and Continue its token there.
	UID      string `json:"uid"`
	Continue string `json:"continue,omitempty"`
}

func (c continuation) String() string {
	data, _ := json.Marshal(c) // two strings and a number
	return base64.RawURLEncoding.EncodeToString(data)
}

func parseContinuation(token string) (c continuation, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	if err != nil {
		return c, apierrors.NewBadRequest("the continue token is not valid for a list over all workspaces: list again without it")
	}
	return c, nil
}

// listPosition returns where a list reads the keyspaces, and the page that it continues.
func (r Request) listPosition(ctx context.Context, opts storage.ListOptions, all []Ref) (at position, page continuation, err error) {
	kept := r.Positions()
	switch {
	case opts.Predicate.Continue != "":
		if page, err = parseContinuation(opts.Predicate.Continue); err != nil {
			return nil, page, err
		}
	case opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		if page.Position, err = strconv.ParseUint(opts.ResourceVersion, 10, 64); err != nil {
			return nil, page, apierrors.NewBadRequest("resourceVersion is not a number")
		}
	default: // the present state is not older than any that a client has seen
		if at, err = r.present(ctx, all); err == nil {
			page.Position = kept.remember(r.Name(), at, time.Now())
		}
		return at, page, err
	}
	at, known := kept.recall(r.Name(), page.Position)
	if !known {
		return nil, page, Expired("this server does not remember the resourceVersion")
	}
	return at, page, nil
}

// List lists the resource in all workspaces, each at the revision of one position.
func (r Request) List(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	return r.explained(r.list(ctx, key, opts, list))
}

func (r Request) list(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	all, err := r.Members(ctx)
	if err != nil {
		return err
	}
	at, page, err := r.listPosition(ctx, opts, all)
	if err != nil {
		return err
	}
	paths := map[string]Ref{}
	for _, c := range all {
		paths[c.UID] = c
	}
	order := make([]Ref, 0, len(at))
	for uid := range at {
		c, known := paths[uid]
		if !known {
			return lost()
		}
		order = append(order, c)
	}
	slices.SortFunc(order, ByPath)
	first := 0
	if page.UID != "" {
		if first = slices.IndexFunc(order, func(c Ref) bool { return c.UID == page.UID }); first < 0 {
			return lost()
		}
	}

	var items []runtime.Object
	next, inner := "", page.Continue
	for i, c := range order[first:] {
		of := opts
		of.ResourceVersion, of.ResourceVersionMatch, of.Predicate.Continue = strconv.FormatInt(at[c.UID], 10), metav1.ResourceVersionMatchExact, ""
		if i == 0 && inner != "" {
			of.ResourceVersion, of.ResourceVersionMatch, of.Predicate.Continue = "", "", inner
		}
		if opts.Predicate.Limit > 0 {
			of.Predicate.Limit = opts.Predicate.Limit - int64(len(items))
			if of.Predicate.Limit == 0 {
				next = continuation{page.Position, c.UID, ""}.String()
				break
			}
		}
		found, more, err := r.listOf(ctx, c, key, of)
		if errors.Is(err, ErrAbsent) {
			return lost()
		}
		if err != nil {
			return err
		}
		items = append(items, found...)
		if more != "" {
			next = continuation{page.Position, c.UID, more}.String()
			break
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	return storage.APIObjectVersioner{}.UpdateList(list, page.Position, next, nil)
}

// listOf lists the objects of one workspace.
func (r Request) listOf(ctx context.Context, c Ref, key string, opts storage.ListOptions) (items []runtime.Object, more string, err error) {
	err = r.within(ctx, c, func(ctx context.Context, from Source) error {
		list := from.NewList()
		if err := from.GetList(ctx, key, from.options(opts), list); err != nil {
			return err
		}
		if items, err = meta.ExtractList(list); err != nil {
			return err
		}
		for _, item := range items {
			annotate(item, c.Path)
		}
		accessor, err := meta.ListAccessor(list)
		if err == nil {
			more = accessor.GetContinue()
		}
		return err
	})
	return items, more, err
}

// ByPath orders workspaces.
func ByPath(a, b Ref) int {
	return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.UID, b.UID))
}

// annotate sets the annotation with the path of an object's workspace. The object belongs to the caller.
func annotate(object runtime.Object, path string) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	all := map[string]string{}
	for k, v := range accessor.GetAnnotations() {
		all[k] = v
	}
	all[v1alpha1.WorkspaceAnnotation] = path
	accessor.SetAnnotations(all)
}
