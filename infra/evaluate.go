package infra

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
	"k8s.io/apimachinery/pkg/util/json" // which keeps whole numbers whole
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
	// origins are the references that arguments come from, by the field of the spec, without spec.
	origins map[string]string
	// unwatched says that a Secret or another object of the API has a part in it: those change without the
	// World being told, so that it has to be evaluated every time.
	unwatched bool
}

// lifecycle is what the spec says of it, but for triggers, which depend on others.
func (e *evaluated) lifecycle() plan.Lifecycle {
	l := e.own.Lifecycle
	return plan.Lifecycle{
		PreventDestroy: l.PreventDestroy, CreateBeforeDestroy: l.CreateBeforeDestroy,
		IgnoreChanges: l.IgnoreChanges, IgnoreAll: l.IgnoreAll,
	}
}

// evaluate reads an object's spec. Others gives the values of other resources and data sources. What is wrong
// is in the errors, each with its field.
func (e *Engine) evaluate(ctx context.Context, o *Object, kind *schema.Kind, others reference.Values) (*evaluated, field.ErrorList) {
	out := &evaluated{origins: map[string]string{}}
	if err := json.Unmarshal(o.Spec, &out.spec); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, fmt.Sprintf("is not an object: %v", err))}
	}
	own, errs := kind.Own(out.spec)
	out.own = own
	r := &resolver{ctx: ctx, engine: e, namespace: o.Ref.Namespace, others: others, out: out}
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
	others    reference.Values
	out       *evaluated
}

func (r *resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.engine.Language.Text(text, r.namespace)
	if err != nil {
		return cty.NilVal, err
	}
	r.out.origins[strings.TrimPrefix(at.String(), "spec.")] = text
	return parsed.Value(reference.Values{
		Lookup: func(ref reference.Ref) (cty.Value, error) {
			if ref.Kind == reference.Kubernetes {
				r.out.unwatched = true
				return r.engine.Values.Kubernetes(r.ctx, ref)
			}
			return r.others.Lookup(ref)
		},
		Attribute:   r.others.Attribute,
		Interrupted: func() bool { return r.ctx.Err() != nil },
	})
}

func (r *resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	r.out.unwatched = true
	text, err := r.engine.Values.Secret(r.ctx, r.namespace, ref.Name, ref.Key)
	if err != nil {
		return cty.NilVal, err
	}
	return cty.StringVal(string(text)).Mark(contract.Sensitive), nil
}

// fingerprint stands for all that a plan for the object depends on besides its state: what it says, with all
// values filled in and which of them are secret, how it may be changed, what serves its type, and the
// revision of the provider's configuration. As long as it is the same there is no need to ask the provider
// again. It is empty if a value is not known yet.
//
// It is keyed by the object's UID, so that two objects that say the same do not look the same to whoever can
// read states.
func (e *Engine) fingerprint(o *Object, said *evaluated, served *Served, opened string) string {
	config, secret := schema.Unmark(said.config)
	if !config.IsWhollyKnown() {
		return ""
	}
	packed, err := msgpack.Marshal(config, served.Schema.Block.ImpliedType())
	if err != nil {
		return "" // it is asked about every time
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
			texts[i] = plan.PathText(path)
		}
		slices.Sort(texts)
		part(strings.Join(texts, "\x00"))
	}
	lifecycle := said.own.Lifecycle
	part("atoll settled 1")
	part(string(packed))
	paths(secret)
	part(fmt.Sprint(lifecycle.PreventDestroy, lifecycle.CreateBeforeDestroy, lifecycle.IgnoreAll))
	paths(lifecycle.IgnoreChanges)
	part(served.Revision)
	part(said.own.Provider)
	part(opened)
	return hex.EncodeToString(h.Sum(nil))
}
