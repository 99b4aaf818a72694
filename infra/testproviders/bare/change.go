package bare

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/value"
	"github.com/atoll-dev/atoll/infra/testproviders/world"
)

// PlanResourceChange sets the attributes that the provider will compute to unknown.
func (s *Server) PlanResourceChange(_ context.Context, req *tfprotov6.PlanResourceChangeRequest) (*tfprotov6.PlanResourceChangeResponse, error) {
	schema := s.Resources[req.TypeName]
	if schema == nil {
		return nil, errUnknownType
	}
	prior, err := req.PriorState.Unmarshal(schema.ValueType())
	if err != nil {
		return nil, err
	}
	next, err := req.ProposedNewState.Unmarshal(schema.ValueType())
	if err != nil {
		return nil, err
	}
	answer := &tfprotov6.PlanResourceChangeResponse{PlannedState: req.ProposedNewState, PlannedPrivate: planned}
	if !prior.IsNull() {
		if err := keptPrivate(req.PriorPrivate, made); err != nil {
			answer.Diagnostics = Complain(err)
			return answer, nil
		}
	}
	if next.IsNull() || next.Equal(prior) {
		return answer, nil
	}
	after := unknownWhereComputed(schema.Block, next)
	answer.RequiresReplace = s.replaced(prior, after)
	if answer.PlannedState, err = Wire(s.revised(schema.Block, after), schema); err != nil {
		return nil, err
	}
	return answer, nil
}

// unknownWhereComputed sets computed attributes that are null to unknown.
func unknownWhereComputed(block *tfprotov6.SchemaBlock, v tftypes.Value) tftypes.Value {
	var all map[string]tftypes.Value
	if v.IsNull() || !v.IsKnown() || v.As(&all) != nil {
		return v
	}
	all = maps.Clone(all)
	for _, a := range block.Attributes {
		if a.Computed && all[a.Name].IsNull() {
			all[a.Name] = tftypes.NewValue(a.ValueType(), tftypes.UnknownValue)
		}
	}
	for _, nested := range block.BlockTypes {
		all[nested.TypeName] = within(nested, all[nested.TypeName])
	}
	return tftypes.NewValue(v.Type(), all)
}

func within(nested *tfprotov6.SchemaNestedBlock, v tftypes.Value) tftypes.Value {
	if v.IsNull() || !v.IsKnown() {
		return v
	}
	switch v.Type().(type) {
	case tftypes.List, tftypes.Set:
		var elements []tftypes.Value
		if v.As(&elements) != nil {
			return v
		}
		next := make([]tftypes.Value, len(elements))
		for i, element := range elements {
			next[i] = unknownWhereComputed(nested.Block, element)
		}
		return tftypes.NewValue(v.Type(), next)
	case tftypes.Map:
		var elements map[string]tftypes.Value
		if v.As(&elements) != nil {
			return v
		}
		next := make(map[string]tftypes.Value, len(elements))
		for key, element := range elements {
			next[key] = unknownWhereComputed(nested.Block, element)
		}
		return tftypes.NewValue(v.Type(), next)
	}
	return unknownWhereComputed(nested.Block, v)
}

// revised sets the revision to unknown, because something changes.
func (s *Server) revised(block *tfprotov6.SchemaBlock, v tftypes.Value) tftypes.Value {
	var all map[string]tftypes.Value
	if !slices.ContainsFunc(block.Attributes, func(a *tfprotov6.SchemaAttribute) bool { return a.Name == "revision" }) || v.As(&all) != nil {
		return v
	}
	all = maps.Clone(all)
	all["revision"] = tftypes.NewValue(tftypes.Number, tftypes.UnknownValue)
	return tftypes.NewValue(v.Type(), all)
}

func (s *Server) replaced(prior, next tftypes.Value) []*tftypes.AttributePath {
	var before, after map[string]tftypes.Value
	if prior.IsNull() || prior.As(&before) != nil || next.As(&after) != nil {
		return nil
	}
	var paths []*tftypes.AttributePath
	for _, name := range s.Replace {
		if was, found := before[name]; found && !was.Equal(after[name]) {
			paths = append(paths, tftypes.NewAttributePath().WithAttributeName(name))
		}
	}
	return paths
}

// ApplyResourceChange applies the plan.
func (s *Server) ApplyResourceChange(_ context.Context, req *tfprotov6.ApplyResourceChangeRequest) (*tfprotov6.ApplyResourceChangeResponse, error) {
	schema := s.Resources[req.TypeName]
	if schema == nil {
		return nil, errUnknownType
	}
	prior, err := Fields(req.PriorState, schema)
	if err != nil {
		return nil, err
	}
	next, err := Fields(req.PlannedState, schema)
	if err != nil {
		return nil, err
	}
	answer := &tfprotov6.ApplyResourceChangeResponse{NewState: req.PriorState, Private: made}
	if next != nil { // hosts do not plan a deletion
		if err := keptPrivate(req.PlannedPrivate, planned); err != nil {
			answer.Diagnostics = Complain(err)
			return answer, nil
		}
	}
	state, err := s.apply(req.TypeName, schema.ValueType(), prior, next)
	if err == nil {
		answer.NewState, err = Wire(state, schema)
	}
	answer.Diagnostics = Complain(err)
	return answer, nil
}

func (s *Server) apply(typeName string, typ tftypes.Type, prior, next map[string]tftypes.Value) (tftypes.Value, error) {
	id := Text(prior, "id")
	if next == nil {
		return tftypes.NewValue(typ, nil), s.drop(typeName, id)
	}
	next = maps.Clone(next)
	if prior == nil {
		id = world.NewID(typeName)
		next["id"] = tftypes.NewValue(tftypes.String, id)
	}
	// The seed differs each time, so that revisions differ.
	state, err := value.Fill(tftypes.NewValue(typ, next), fmt.Sprintf("%s/%s/%s", typeName, Text(next, "name"), world.NewID("fill")))
	if err != nil {
		return tftypes.Value{}, err
	}
	if s.World == nil {
		return state, nil
	}
	if s.Forget {
		entry := world.Entry{Call: "create", Type: typeName, ID: id}
		if prior != nil {
			entry.Call = "update"
			for name := range next {
				if !next[name].Equal(prior[name]) {
					entry.Changed = append(entry.Changed, name)
				}
			}
			slices.Sort(entry.Changed)
		}
		return state, s.note(entry)
	}
	encoded, err := value.EncodeObject(state, typ)
	if err != nil {
		return tftypes.Value{}, err
	}
	if prior == nil {
		return state, s.World.Create(id, encoded)
	}
	return state, s.World.Update(id, encoded)
}

func (s *Server) drop(typeName, id string) error {
	switch {
	case s.World == nil:
		return nil
	case s.Forget:
		return s.note(world.Entry{Call: "delete", Type: typeName, ID: id})
	}
	return s.World.Delete(id, false)
}
