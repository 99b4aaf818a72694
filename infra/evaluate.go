package infra

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/zclconf/go-cty/cty"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
	"github.com/atoll-dev/atoll/infra/schema"
)

// evaluated is what an object's spec says, with what it refers to filled in.
type evaluated struct {
	spec map[string]any
	own  schema.Own
	// config is marked where it is secret.
	config cty.Value
	// origins are the references that arguments come from, by the path of the argument.
	origins map[string]string
}

// lifecycle is what the spec says of it, but for triggers, which depend on others.
func (e *evaluated) lifecycle() plan.Lifecycle {
	l := e.own.Lifecycle
	return plan.Lifecycle{
		PreventDestroy: l.PreventDestroy, CreateBeforeDestroy: l.CreateBeforeDestroy,
		IgnoreChanges: l.IgnoreChanges, IgnoreAll: l.IgnoreAll,
	}
}

// lookup gives the attributes of another resource or data source, marked where they are secret,
// and unknown where they are not known yet.
type lookup func(ref reference.Ref) (cty.Value, error)

// evaluate reads an object's spec. What is wrong with it is in the errors, each with its
// field.
func (e *Engine) evaluate(ctx context.Context, o *Object, kind *schema.Kind, others lookup) (*evaluated, field.ErrorList) {
	out := &evaluated{origins: map[string]string{}}
	if err := json.Unmarshal(o.Spec, &out.spec); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, fmt.Sprintf("is not an object: %v", err))}
	}
	own, errs := kind.Own(out.spec)
	out.own = own
	r := &resolver{ctx: ctx, engine: e, namespace: o.Ref.Namespace, others: others, origins: out.origins}
	config, more := kind.Config(out.spec, r)
	if errs = append(errs, more...); len(errs) > 0 {
		return out, errs
	}
	out.config = config
	return out, nil
}

// resolver gives one object's expressions and secrets their values.
type resolver struct {
	ctx       context.Context
	engine    *Engine
	namespace string
	others    lookup
	origins   map[string]string
}

func (r *resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.engine.Language.Text(text, r.namespace)
	if err != nil {
		return cty.NilVal, err
	}
	r.origins[at.String()] = text
	return reference.Field{Path: at.String(), Text: parsed}.Value(reference.Values{
		Lookup: func(ref reference.Ref) (cty.Value, error) {
			if ref.Kind == reference.Kubernetes {
				return r.engine.Values.Kubernetes(r.ctx, ref)
			}
			return r.others(ref)
		},
		Interrupted: func() bool { return r.ctx.Err() != nil },
	})
}

func (r *resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	text, err := r.engine.Values.Secret(r.ctx, r.namespace, ref.Name, ref.Key)
	if err != nil {
		return cty.NilVal, err
	}
	return cty.StringVal(string(text)).Mark(contract.Sensitive), nil
}
