package reach

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// clusters are the sources of a Reach.
type clusters struct{ *Reach }

func (c clusters) names(ctx context.Context, q query) (exist, readable []string, err error) {
	states, err := c.members.states(ctx)
	for _, is := range states {
		exist = append(exist, is.cluster)
		if is.unreached == "" && q.concerns(is.cluster) {
			readable = append(readable, is.cluster)
		}
	}
	return exist, readable, err
}

func (c clusters) lists(ctx context.Context, q query) (parts []part, missing map[string]string, err error) {
	return c.ask(ctx, q, func(ctx context.Context, m *member) part { return m.list(ctx, q) })
}

func (c clusters) source(cluster string, q query) source {
	return source{
		name: cluster,
		list: func(ctx context.Context) (part, error) {
			m, err := c.members.get(ctx, cluster)
			if err != nil {
				return part{}, err
			}
			out := m.list(ctx, q)
			return out, out.err
		},
		watch: func(ctx context.Context, version string) (watch.Interface, error) {
			m, err := c.members.get(ctx, cluster)
			if err != nil {
				return nil, err
			}
			o := q.options(cluster)
			o.ResourceVersion, o.AllowWatchBookmarks = version, true
			o.Watch = true
			return m.rest.Get().NamespaceIfScoped(q.namespace, q.namespace != "").Resource(q.resource).VersionedParams(&o, scheme.ParameterCodec).Watch(ctx)
		},
		belongs: func(ctx context.Context, obj object) (bool, error) {
			m, err := c.members.get(ctx, cluster)
			if err != nil || !q.covers(obj) {
				return false, err
			}
			return q.kind.belongs(ctx, m, obj)
		},
		show: func(obj object) { q.kind.show(obj, cluster) },
	}
}
