package plancontroller

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/apistore"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/planstore"
)

// effectiveChanges reads the changes of a plan that have an effect, until visit returns false.
func effectiveChanges(ctx context.Context, client dynamic.Interface, p *v1alpha1.Plan, visit func(*change.Change) bool) error {
	contents, store := planstore.ContentsOf(&p.Status), apistore.NewPlanStore(client, p)
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if chunk.Changes == chunk.Actions[change.NoOp] && p.Status.Summary.Drift == 0 {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return err
		}
		enough := false
		err = chunk.Read(pieces, true, nil, func(c *change.Change) bool {
			if c.Action == change.NoOp && c.Drift == nil && c.Importing == "" {
				return true
			}
			enough = !visit(c)
			return !enough
		})
		if err != nil {
			return fmt.Errorf("chunk %d of plan %s: %w", n, p.Name, err)
		}
		if enough {
			return nil
		}
	}
	return nil
}

// allChanges reads all changes of a plan, except chunks without any effect.
func allChanges(ctx context.Context, client dynamic.Interface, p *v1alpha1.Plan, visit func(*change.Change) bool) error {
	contents, store := planstore.ContentsOf(&p.Status), apistore.NewPlanStore(client, p)
	if err := contents.Check(contents.Digest); err != nil {
		return fmt.Errorf("plan %s: %w", p.Name, err)
	}
	for n := range contents.Chunks {
		chunk := &contents.Chunks[n]
		if p.Spec.Rollback == "" && chunk.Changes == chunk.Actions[change.NoOp] {
			continue
		}
		pieces, err := store.Shown(ctx, n)
		if err != nil {
			return err
		}
		if err := chunk.Read(pieces, true, nil, visit); err != nil {
			return fmt.Errorf("chunk %d of plan %s: %w", n, p.Name, err)
		}
	}
	return nil
}

// refOf returns the resource of an address in a plan of a namespace.
func refOf(namespace string, a change.Address) expr.Ref {
	ref := expr.Ref{Type: a.Type, Namespace: a.Namespace, Name: a.Name}
	if ref.Namespace == "" {
		ref.Namespace = namespace
	}
	if a.Data {
		ref.Kind = expr.Data
	}
	return ref
}
