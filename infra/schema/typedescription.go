package schema

import "github.com/atoll-dev/atoll/infra/providerapi"

// TypeDescription is a served type with its whole schema. Servers return it to clients that create
// objects for existing resources.
type TypeDescription struct {
	Type   string              `json:"type"`
	Data   bool                `json:"data,omitempty"`
	Kind   string              `json:"kind"`
	Plural string              `json:"plural"`
	Schema *providerapi.Schema `json:"schema"`
}

// TypeDescriptionList is the response to a request for some types.
type TypeDescriptionList struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []TypeDescription `json:"items"`
}

// KindIn returns the described Kind in a group.
func (d *TypeDescription) KindIn(group string) Kind {
	return Kind{Name: Name{Type: d.Type, Data: d.Data, Kind: d.Kind, Plural: d.Plural}, Group: group, Schema: d.Schema}
}
