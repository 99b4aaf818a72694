// Package evaluate computes the values that plans and applies work with: the arguments of an
// object's spec, with all references resolved, and the values of stored resources.
//
// It reads Secrets and Kubernetes objects through infra.ValueReader. It calls a provider only to
// upgrade a stored value, and writes nothing.
package evaluate

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers as integers
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/infra"
	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// Spec is an object's spec with all references resolved.
type Spec struct {
	spec map[string]any
	Meta schema.MetaArguments
	// Config has its secret parts marked.
	Config cty.Value
	// Origins are the expressions that set the arguments, by field path without the spec prefix.
	Origins map[string]string
	// Unwatched means that a Secret, another Kubernetes object, or the result of a provider's function
	// is an input. The Inventory is not told when those change, so that the spec has to be evaluated for
	// every plan.
	Unwatched bool
}

// Lifecycle returns the lifecycle settings of the spec, except triggers, which depend on other
// resources.
func (e *Spec) Lifecycle() decide.Lifecycle {
	l := e.Meta.Lifecycle
	return decide.Lifecycle{
		PreventDestroy: l.PreventDestroy, CreateBeforeDestroy: l.CreateBeforeDestroy,
		IgnoreChanges: l.IgnoreChanges, IgnoreAll: l.IgnoreAll,
	}
}

// Evaluator evaluates the specs of objects. It is safe for concurrent use.
type Evaluator struct {
	Language  *expr.Language
	Values    infra.ValueReader
	Functions infra.Functions
}

// Evaluate evaluates an object's spec. others provides the values of other resources and data
// sources. Errors name their fields.
func (e *Evaluator) Evaluate(ctx context.Context, o *infra.Object, kind *schema.Kind, others expr.Scope) (*Spec, field.ErrorList) {
	out := &Spec{Origins: map[string]string{}}
	if err := json.Unmarshal(o.Spec, &out.spec); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, fmt.Sprintf("must be an object: %v", err))}
	}
	own, errs := kind.MetaArguments(out.spec)
	out.Meta = own
	r := &resolver{ctx: ctx, evaluator: e, reader: infra.Reader{Object: o}, others: others, out: out}
	config, more := kind.Config(out.spec, r)
	if errs = append(errs, more...); len(errs) > 0 {
		return out, errs
	}
	out.Config = config
	return out, nil
}

// resolver resolves the expressions and secrets of one object.
type resolver struct {
	ctx       context.Context
	evaluator *Evaluator
	reader    infra.Reader
	others    expr.Scope
	out       *Spec
}

func (r *resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.evaluator.Language.Template(text, r.reader.Ref.Namespace)
	if err != nil {
		return cty.NilVal, err
	}
	r.out.Origins[strings.TrimPrefix(at.String(), "spec.")] = text
	v, err := parsed.Value(expr.Scope{
		Lookup: func(ref expr.Ref) (cty.Value, error) {
			if ref.Kind == expr.Kubernetes {
				r.out.Unwatched = true
				return r.evaluator.Values.Object(r.ctx, r.reader, ref)
			}
			return r.resource(ref)
		},
		Attribute: r.attribute,
		Call: func(f expr.Function, arguments []cty.Value) (cty.Value, error) {
			r.out.Unwatched = true
			return r.evaluator.Functions.CallFunction(r.ctx, f.Provider, f.Name, arguments)
		},
		Interrupted: func() bool { return r.ctx.Err() != nil },
	})
	if err != nil {
		return cty.NilVal, err
	}
	return v, checkWithheld(v)
}

func (r *resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	r.out.Unwatched = true
	text, err := r.evaluator.Values.Secret(r.ctx, r.reader, ref.Name, ref.Key)
	if err != nil {
		return cty.NilVal, err
	}
	return cty.StringVal(string(text)).Mark(providerapi.Sensitive), nil
}

// Fingerprint identifies everything that a plan for the object depends on, except its state: the
// resolved arguments, which of them are secret, the lifecycle settings, the revision of its type,
// and that of the provider's configuration. While it is unchanged, the provider need not be asked
// again. It is empty if a value is unknown.
//
// It is keyed with the object's UID, so that equal secrets of two objects look different to readers
// of states.
func (e *Spec) Fingerprint(o *infra.Object, kind *infra.ServedKind, configRevision string) string {
	config, secret := schema.Unmark(e.Config)
	if !config.IsWhollyKnown() {
		return ""
	}
	packed, err := msgpack.Marshal(config, kind.Schema.Block.ImpliedType())
	if err != nil {
		return "" // the provider is asked every time
	}
	h := hmac.New(sha256.New, []byte(o.UID))
	part := func(text string) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		io.WriteString(h, text)
	}
	paths := func(list []cty.Path) {
		texts := make([]string, len(list))
		for i, path := range list {
			texts[i] = providerapi.PathText(path)
		}
		slices.Sort(texts)
		part(strings.Join(texts, "\x00"))
	}
	lifecycle := e.Meta.Lifecycle
	part("atoll settled 1")
	part(string(packed))
	paths(secret)
	part(fmt.Sprint(lifecycle.PreventDestroy, lifecycle.CreateBeforeDestroy, lifecycle.IgnoreAll))
	paths(lifecycle.IgnoreChanges)
	part(kind.Revision)
	part(e.Meta.Provider)
	part(configRevision)
	return hex.EncodeToString(h.Sum(nil))
}
