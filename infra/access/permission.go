package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/controllers"
	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/grants"
)

// permittedRead is how an object may be read for a spec.
type permittedRead struct {
	ctx    context.Context
	client dynamic.Interface
	// author identifies the user whose rights the API checks, with their groups. It is empty if a grant, or
	// the namespace of a Secret, permits the read.
	author, username string
}

// permitted returns how an object may be read for a spec, or why not.
func (s *Values) permitted(ctx context.Context, reader infra.Reader, ref expr.Ref, found apiResource) (permittedRead, error) {
	switch {
	case found.namespaced && ref.Namespace != reader.Ref.Namespace:
		to := grants.To{Group: found.gvr.Group, Kind: ref.Type, Name: ref.Name}
		if err := s.granted(ctx, reader, ref.Namespace, to, found.secret()); err != nil {
			return permittedRead{}, err
		}
		return permittedRead{ctx: ctx, client: s.own}, nil
	case found.secret():
		return permittedRead{ctx: ctx, client: s.own}, nil
	}
	author, err := authorOf(ctx, reader)
	if err != nil {
		return permittedRead{}, fmt.Errorf("%s cannot be read: %w", ref, err)
	}
	as := controllers.Author{Username: author.Username, UID: author.UID, Groups: author.Groups}
	authored, err := controllers.WithAuthor(ctx, as)
	if err != nil {
		return permittedRead{}, fmt.Errorf("%s is read with the rights of the spec's author, but %w: have a user change the spec, or plan", ref, err)
	}
	id := strings.Join(append([]string{as.Username, as.UID}, as.Groups...), "\x00")
	return permittedRead{ctx: authored, client: s.author, author: id, username: as.Username}, nil
}

// authorOf returns the user who last changed a spec. If the server has not recorded one, it is the author of
// the plan: an earlier version wrote the object, or the plan has it in spec.objects.
func authorOf(ctx context.Context, reader infra.Reader) (*v1alpha1.Person, error) {
	author, err := reader.ReadAuthor()
	if err != nil {
		return nil, err
	}
	if r := evaluationOf(ctx); author == nil && r != nil {
		author = r.planAuthor
	}
	if author == nil {
		author = &v1alpha1.Person{}
	}
	return author, nil
}

// forbidden returns the error for an object that the author may not read.
func forbidden(way permittedRead, ref expr.Ref, found apiResource) error {
	where := "the cluster"
	if found.namespaced {
		where = "namespace " + ref.Namespace
	}
	return fmt.Errorf("%s is read with the rights of %s, who last changed the spec (or, if that is not recorded, made the plan) and may not get %s in %s: "+
		"grant that right, or have another user change the spec", ref, way.username, found.gvr.GroupResource(), where)
}

// Reference implements infra.ValueReader.
func (s *Values) Reference(ctx context.Context, reader infra.Reader, ref expr.Ref, sensitive bool) error {
	if ref.Namespace == reader.Ref.Namespace {
		return nil
	}
	kind, err := s.kinds.Kind(ref)
	if errors.Is(err, infra.ErrNotServed) {
		return fmt.Errorf("%s has a type that no installed Provider serves: correct the reference, or install the Provider", ref)
	}
	if err != nil {
		return err
	}
	return s.granted(ctx, reader, ref.Namespace, grants.To{Group: kind.Group, Kind: kind.Name.Kind, Name: ref.Name}, sensitive)
}

// granted returns nil if a namespace grants the reader an object, and otherwise which grant is missing.
func (s *Values) granted(ctx context.Context, reader infra.Reader, namespace string, to grants.To, sensitive bool) error {
	all, err := s.grantsOf(ctx, namespace)
	if err != nil {
		return err
	}
	from := grants.From{Group: reader.Group, Kind: reader.Kind, Namespace: reader.Ref.Namespace}
	switch access := grants.Decide(all, from, to); {
	case access == grants.None:
		return errors.New(grants.Refusal(from, namespace, to))
	case access == grants.Public && sensitive:
		return errors.New(grants.SensitiveRefusal(from, namespace, to))
	}
	return nil
}

// grantsOf returns the grants of a namespace. There are none if their type is not served.
func (s *Values) grantsOf(ctx context.Context, namespace string) ([]grants.Spec, error) {
	return cached(evaluationOf(ctx), func(r *evaluation) map[string]func() ([]grants.Spec, error) { return r.grants }, namespace, func() ([]grants.Spec, error) {
		list, err := s.own.Resource(ReferenceGrants()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the ReferenceGrants of namespace %s: %w", namespace, err)
		}
		var out []grants.Spec
		for i := range list.Items {
			var grant struct {
				Spec grants.Spec `json:"spec"`
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &grant); err != nil {
				return nil, fmt.Errorf("read ReferenceGrant %s of namespace %s: %w", list.Items[i].GetName(), namespace, err)
			}
			out = append(out, grant.Spec)
		}
		return slices.Clip(out), nil
	})
}

// ReferenceGrants returns the resource of ReferenceGrants.
func ReferenceGrants() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: grants.Group, Version: grants.Version, Resource: grants.Resource}
}
