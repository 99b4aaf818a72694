package schema

import "github.com/atoll-dev/atoll/infra/contract"

// Described is a type with all that there is to know of it, as a server tells it to clients that make objects of
// what providers made elsewhere.
type Described struct {
	Type   string           `json:"type"`
	Data   bool             `json:"data,omitempty"`
	Kind   string           `json:"kind"`
	Plural string           `json:"plural"`
	Schema *contract.Schema `json:"schema"`
}

// DescribedList is the answer to a request for some types.
type DescribedList struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Items      []Described `json:"items"`
}

// Of is the Kind that is described, in a group.
func (d *Described) Of(group string) Kind {
	return Kind{Name: Name{Type: d.Type, Data: d.Data, Kind: d.Kind, Plural: d.Plural}, Group: group, Schema: d.Schema}
}
