package search

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// maxObjects bounds the objects of one cluster.
const maxObjects = 20_000

var errManyObjects = fmt.Errorf("more than %d objects match: select a namespace with -n, or by labels with -l", maxObjects)

// member is one cluster, below its proxy.
type member struct {
	cluster string
	config  *rest.Config
	client  *http.Client
}

func (m member) search(ctx context.Context, q Query) (out Found) {
	kind, err := m.resolve(q.Kind)
	if err != nil {
		return Found{Err: err}
	}
	out.Kind, out.Namespaced = kind.GroupVersionKind, kind.Scope.Name() == meta.RESTScopeNameNamespace
	o := metav1.ListOptions{LabelSelector: q.Selector}
	if q.Name != "" {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, q.Name).String()
	}
	namespace := ""
	if out.Namespaced {
		namespace = q.Namespace
	}
	if q.Objects {
		out.Objects, out.Err = m.objects(ctx, kind.Resource, namespace, o)
	} else {
		out.Columns, out.Rows, out.Err = m.rows(ctx, kind.Resource, namespace, o)
	}
	return out
}

// resolve returns the kind that the cluster serves under a name, as kubectl would for the cluster alone.
func (m member) resolve(name string) (*meta.RESTMapping, error) {
	client, err := discovery.NewDiscoveryClientForConfigAndClient(m.config, m.client)
	if err != nil {
		return nil, err
	}
	known := discovered{DiscoveryInterface: client}
	known.groups, known.resources, known.err = client.ServerGroupsAndResources()
	groups, err := restmapper.GetAPIGroupResources(known)
	if err != nil {
		return nil, err
	}
	if len(groups) == 0 {
		// client-go takes an answer 404 for an API without groups.
		return nil, errors.New("it serves no API: check its name with `kubectl get clusters`")
	}
	mapper := restmapper.NewShortcutExpander(restmapper.NewDiscoveryRESTMapper(groups), known, func(string) {})
	full, short := schema.ParseResourceArg(strings.ToLower(name))
	var kind schema.GroupVersionKind
	if full != nil {
		kind, err = mapper.KindFor(*full)
	}
	if kind.Empty() {
		kind, err = mapper.KindFor(short.WithVersion(""))
	}
	if meta.IsNoMatchError(err) && kind.Empty() {
		return nil, known.noKind()
	}
	if kind.Empty() {
		return nil, err
	}
	return mapper.RESTMapping(kind.GroupKind(), kind.Version)
}

// discovered is the discovery of a cluster, read once. client-go's caches log errors, which a command has to print itself.
type discovered struct {
	discovery.DiscoveryInterface
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
	err       error // of some groups, or of all
}

func (d discovered) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return d.groups, d.resources, d.err
}

// noKind returns the error about a kind that was not found. A group whose server does not answer now may have it.
func (d discovered) noKind() error {
	failed := (*discovery.ErrGroupDiscoveryFailed)(nil)
	if !errors.As(d.err, &failed) {
		return ErrNoKind
	}
	versions := slices.SortedFunc(maps.Keys(failed.Groups), func(a, b schema.GroupVersion) int { return strings.Compare(a.String(), b.String()) })
	return fmt.Errorf("it may have the kind in %s, which it does not serve now: %s", versions[0], reason(failed.Groups[versions[0]]))
}

// objects returns whole objects.
func (m member) objects(ctx context.Context, resource schema.GroupVersionResource, namespace string, o metav1.ListOptions) (all []unstructured.Unstructured, err error) {
	client, err := dynamic.NewForConfigAndClient(m.config, m.client)
	if err != nil {
		return nil, err
	}
	err = fleet.EachPage(ctx, o, client.Resource(resource).Namespace(namespace).List, func(page *unstructured.UnstructuredList) (bool, error) {
		if len(all)+len(page.Items) > maxObjects {
			return false, errManyObjects
		}
		for _, item := range page.Items {
			item.SetManagedFields(nil) // as kubectl prints them
			annotations := item.GetAnnotations()
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[v1alpha1.ClusterAnnotation] = m.cluster
			item.SetAnnotations(annotations)
			all = append(all, item)
		}
		return true, nil
	})
	return all, err
}

// rows returns the rows that the cluster prints.
func (m member) rows(ctx context.Context, resource schema.GroupVersionResource, namespace string, o metav1.ListOptions) (columns []metav1.TableColumnDefinition, rows []Row, err error) {
	client, err := rest.UnversionedRESTClientForConfigAndClient(m.untyped(), m.client)
	if err != nil {
		return nil, nil, err
	}
	err = fleet.EachPage(ctx, o, func(ctx context.Context, o metav1.ListOptions) (*metav1.Table, error) {
		raw, err := client.Get().AbsPath(pathOf(resource, namespace)).SpecificallyVersionedParams(&o, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"}).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		return tableOf(raw, time.Now())
	}, func(page *metav1.Table) (bool, error) {
		if len(rows)+len(page.Rows) > maxObjects {
			return false, errManyObjects
		}
		if len(page.ColumnDefinitions) > 0 {
			columns = page.ColumnDefinitions // the later pages of a server may have none
		}
		for _, row := range page.Rows {
			of := metav1.PartialObjectMetadata{}
			if err := json.Unmarshal(row.Object.Raw, &of); err != nil {
				return false, fmt.Errorf("a row without an object: %w", err)
			}
			rows = append(rows, Row{m.cluster, of.Namespace, of.Name, row.Cells})
		}
		return true, nil
	})
	return columns, rows, err
}

func (m member) untyped() *rest.Config {
	config := rest.CopyConfig(m.config)
	config.APIPath, config.NegotiatedSerializer = "/", scheme.Codecs.WithoutConversion()
	return config
}

func pathOf(resource schema.GroupVersionResource, namespace string) string {
	at := path.Join("/apis", resource.Group, resource.Version)
	if resource.Group == "" {
		at = path.Join("/api", resource.Version)
	}
	if namespace != "" {
		at = path.Join(at, "namespaces", namespace)
	}
	return path.Join(at, resource.Resource)
}

// tableOf decodes a table. If a server prints none and answers with a list, the table has the names and ages.
func tableOf(raw []byte, now time.Time) (*metav1.Table, error) {
	table := &metav1.Table{}
	if err := json.Unmarshal(raw, table); err != nil {
		return nil, fmt.Errorf("the answer is no table: %w", err)
	}
	if table.Kind == "Table" {
		return table, nil
	}
	list := metav1.PartialObjectMetadataList{}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("the answer is no list: %w", err)
	}
	out := &metav1.Table{ListMeta: list.ListMeta, ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}, {Name: "Age", Type: "string"}}}
	for _, item := range list.Items {
		encoded, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: item.Namespace, Name: item.Name}})
		if err != nil {
			return nil, err
		}
		age := "<unknown>"
		if !item.CreationTimestamp.IsZero() {
			age = duration.HumanDuration(now.Sub(item.CreationTimestamp.Time))
		}
		out.Rows = append(out.Rows, metav1.TableRow{Cells: []any{item.Name, age}, Object: runtime.RawExtension{Raw: encoded}})
	}
	return out, nil
}
