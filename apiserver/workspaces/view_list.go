package workspaces

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// openedAtOnce is how many consumers a list opens at the same time.
const openedAtOnce = 8

// allConsumers is in the context of a request over all consumers of an export. The context has no workspace: only the storage of the
// resource knows what to do with it.
type allConsumers struct {
	*chain
	view     *view
	resource schema.GroupResource
}

type allKey struct{}

func allOf(ctx context.Context) *allConsumers {
	a, _ := ctx.Value(allKey{}).(*allConsumers)
	return a
}

// of is what the positions of these requests belong to.
func (a *allConsumers) of() string { return a.view.export + " " + a.resource.String() }

// recorded returns the entries of workspaces that may be consumers.
func (a *allConsumers) recorded(ctx context.Context) ([]recordedConsumer, error) {
	return recordedConsumers(ctx, a.view.exporter, a.view.export)
}

// enter opens a workspace of an entry.
// Errors: ErrNotFound if it is gone for good.
func (a *allConsumers) enter(ctx context.Context, c recordedConsumer) (context.Context, *Workspace, func(), error) {
	in, w, release, err := a.open(ctx, c.path)
	if err == nil && w.uid == c.uid {
		return in, w, release, nil
	}
	if err == nil {
		release()
		err = ErrNotFound
	}
	if !errors.Is(err, ErrNotFound) {
		return nil, nil, nil, fmt.Errorf("open workspace %s: %w", c.path, err)
	}
	// Not to be found is not to be gone: another server may have created it a moment ago.
	err = a.confirm(ctx, c.path, c.uid)
	if err == nil {
		return nil, nil, nil, fmt.Errorf("workspace %s is not known yet", c.path)
	}
	if errors.Is(err, ErrNotFound) {
		removeRecord(ctx, a.view.exporter, c)
	}
	return nil, nil, nil, err
}

// within calls f with the storage of a consumer.
// Errors: ErrNotFound if it is no consumer now.
func (a *allConsumers) within(ctx context.Context, c recordedConsumer, s *requestStore, f func(context.Context, storage.Interface) error) error {
	in, w, release, err := a.enter(ctx, c)
	if err != nil {
		return err
	}
	defer release()
	consumes, err := a.consumes(in, a.view, w, a.resource)
	if err == nil && !consumes {
		err = ErrNotFound
	}
	if err != nil {
		return err
	}
	store, err := w.store(s)
	if err != nil {
		return err
	}
	return f(in, store)
}

// present returns where the keyspaces of all consumers stand now.
func (a *allConsumers) present(ctx context.Context, s *requestStore, all []recordedConsumer) (position, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(openedAtOnce)
	var mu sync.Mutex
	at := position{}
	for _, c := range all {
		group.Go(func() error {
			err := a.within(ctx, c, s, func(ctx context.Context, store storage.Interface) error {
				revision, err := store.GetCurrentResourceVersion(ctx)
				mu.Lock()
				defer mu.Unlock()
				at[c.uid] = int64(revision)
				return err
			})
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		})
	}
	return at, group.Wait()
}

// explained returns the error that a client gets. The log has the cause of one that is not about its request: it may be about the database.
func (a *allConsumers) explained(err error) error {
	var status apierrors.APIStatus
	var stored *storage.StorageError
	if err == nil || errors.As(err, &status) || errors.As(err, &stored) || errors.Is(err, context.Canceled) {
		return err
	}
	a.log.Error("read the consumers of an APIExport failed", "export", a.view.export, "resource", a.resource.String(), "error", err)
	return unavailable("a consumer of the APIExport cannot be read now: retry")
}

// expired is the error for a resourceVersion that cannot be continued: clients list again.
func expired(why string) error {
	return apierrors.NewResourceExpired(why + ": list again")
}

// continuation is a continue token of a list over all consumers.
type continuation struct {
	// Position is the resourceVersion of the list.
	Position uint64 `json:"position"`
	// UID is the consumer where the next page begins, and Continue its token there.
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
func (a *allConsumers) listPosition(ctx context.Context, s *requestStore, opts storage.ListOptions, all []recordedConsumer) (at position, page continuation, err error) {
	kept := &a.view.exporter.positions
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
		if at, err = a.present(ctx, s, all); err == nil {
			page.Position = kept.remember(a.of(), at, time.Now())
		}
		return at, page, err
	}
	at, known := kept.recall(a.of(), page.Position)
	if !known {
		return nil, page, expired("this server does not remember the resourceVersion")
	}
	return at, page, nil
}

// listAll lists a resource in all consumers, each at the revision of one position.
func (s *requestStore) listAll(ctx context.Context, a *allConsumers, key string, opts storage.ListOptions, list runtime.Object) error {
	all, err := a.recorded(ctx)
	if err != nil {
		return err
	}
	at, page, err := a.listPosition(ctx, s, opts, all)
	if err != nil {
		return err
	}
	paths := map[string]recordedConsumer{}
	for _, c := range all {
		paths[c.uid] = c
	}
	order := make([]recordedConsumer, 0, len(at))
	for uid := range at {
		c, known := paths[uid]
		if !known {
			return expired("a workspace of the list is no consumer any more")
		}
		order = append(order, c)
	}
	slices.SortFunc(order, func(x, y recordedConsumer) int {
		return cmp.Or(strings.Compare(x.path, y.path), strings.Compare(x.uid, y.uid))
	})
	first := 0
	if page.UID != "" {
		if first = slices.IndexFunc(order, func(c recordedConsumer) bool { return c.uid == page.UID }); first < 0 {
			return expired("a workspace of the list is no consumer any more")
		}
	}

	var items []runtime.Object
	next, inner := "", page.Continue
	for i, c := range order[first:] {
		of := opts
		of.ResourceVersion, of.ResourceVersionMatch, of.Predicate.Continue = strconv.FormatInt(at[c.uid], 10), metav1.ResourceVersionMatchExact, ""
		if i == 0 && inner != "" {
			of.ResourceVersion, of.ResourceVersionMatch, of.Predicate.Continue = "", "", inner
		}
		if opts.Predicate.Limit > 0 {
			of.Predicate.Limit = opts.Predicate.Limit - int64(len(items))
			if of.Predicate.Limit == 0 {
				next = continuation{page.Position, c.uid, ""}.String()
				break
			}
		}
		found, more, err := s.listOf(ctx, a, c, key, of)
		if errors.Is(err, ErrNotFound) {
			return expired("a workspace of the list is no consumer any more")
		}
		if err != nil {
			return err
		}
		items = append(items, found...)
		if more != "" {
			next = continuation{page.Position, c.uid, more}.String()
			break
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return err
	}
	return s.Versioner().UpdateList(list, page.Position, next, nil)
}

// listOf lists the objects of one consumer.
func (s *requestStore) listOf(ctx context.Context, a *allConsumers, c recordedConsumer, key string, opts storage.ListOptions) (items []runtime.Object, more string, err error) {
	err = a.within(ctx, c, s, func(ctx context.Context, store storage.Interface) error {
		list := s.newList()
		if err := store.GetList(ctx, key, opts, list); err != nil {
			return err
		}
		if items, err = meta.ExtractList(list); err != nil {
			return err
		}
		for _, item := range items {
			annotate(item, c.path)
		}
		accessor, err := meta.ListAccessor(list)
		if err == nil {
			more = accessor.GetContinue()
		}
		return err
	})
	return items, more, err
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
	all[WorkspaceAnnotation] = path
	accessor.SetAnnotations(all)
}
