package reach

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// merger shows the objects of several sources, and those that an API stores itself, as one list.
type merger struct {
	ledger *ledger
	clock  clock.WithTicker
}

func newMerger(clk clock.WithTicker) merger { return merger{newLedger(clk.Now()), clk} }

// sources have objects.
type sources interface {
	// names returns the sources that exist, and those of them that are read for a query now. What a client knows of one that does not exist any more
	// is gone.
	names(ctx context.Context, q query) (exist, readable []string, err error)
	// lists returns what each source has. missing are those that are not read, with the reason.
	lists(ctx context.Context, q query) (parts []part, missing map[string]string, err error)
	// source returns how one is followed.
	source(name string, q query) source
}

// list returns the objects of all sources, and why those of some are missing.
func (m merger) list(ctx context.Context, q query, here cache.ListerWatcherWithContext, from sources) (list runtime.Object, missing map[string]string, err error) {
	objects, version, missing, err := m.collect(ctx, q, here, from)
	if err != nil {
		return nil, nil, err
	}
	list = q.kind.newList()
	items := make([]runtime.Object, len(objects))
	for i, obj := range objects {
		items[i] = obj
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, nil, err
	}
	as, err := meta.ListAccessor(list)
	if err != nil {
		return nil, nil, err
	}
	as.SetResourceVersion(version)
	return list, missing, nil
}

// collect returns the objects of all sources, by name, and the version of the list that they are.
func (m merger) collect(ctx context.Context, q query, here cache.ListerWatcherWithContext, from sources) (all []object, version string, missing map[string]string, err error) {
	parts, missing, err := from.lists(ctx, q)
	if err != nil {
		return nil, "", nil, err
	}
	own, err := listHere(ctx, here, q)
	if err != nil {
		return nil, "", nil, err
	}
	versions, known := map[string]string{}, map[objectKey]struct{}{}
	for _, part := range append([]part{own}, parts...) {
		if errors.Is(part.err, errManyObjects) || len(all)+len(part.objects) > maxObjects {
			return nil, "", nil, apierrors.NewRequestEntityTooLargeError(errManyObjects.Error())
		}
		if part.err != nil {
			missing[part.source] = part.err.Error() // and a watch lists the source first
			continue
		}
		versions[part.source] = part.version
		for _, obj := range part.objects {
			known[keyOf(part.source, obj)] = struct{}{}
		}
		all = append(all, part.objects...)
	}
	_, position := m.ledger.begin(q.scope, versions, known, m.clock.Now())
	for _, obj := range all {
		m.number(obj, position)
	}
	slices.SortStableFunc(all, func(a, b object) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return all, m.ledger.version(position, 0), missing, nil
}

// number gives an object the resource version of a position.
func (m merger) number(obj object, position uint64) {
	obj.SetResourceVersion(m.ledger.version(position, digits(MemberVersion(obj.GetResourceVersion()))))
}

func keyOf(source string, obj object) objectKey {
	return objectKey{source, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}, obj.GetUID()}
}

// listHere returns the objects that the control plane stores.
func listHere(ctx context.Context, here cache.ListerWatcherWithContext, q query) (part, error) {
	list, err := here.ListWithContext(ctx, metav1.ListOptions{LabelSelector: q.labels, FieldSelector: q.fields})
	if err != nil {
		return part{}, err
	}
	objects, version, err := itemsOf(list)
	return part{source: store, version: version, objects: objects}, err
}
