package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/atoll-dev/atoll/infra/testproviders/bare"
)

// The size of each type.
const (
	attributes = 40
	blocks     = 3
)

// Words for names and descriptions.
var (
	areas  = []string{"compute", "storage", "network", "database", "identity", "queue", "monitor", "dns", "cache", "batch"}
	things = []string{"instance", "bucket", "policy", "rule", "cluster", "group", "endpoint", "attachment", "key", "pool"}
	words  = []string{"name", "size", "zone", "mode", "owner", "limit", "retention", "schedule", "version", "target", "source", "timeout", "weight", "path", "format"}
	said   = strings.Fields("the a of which that resource value whether it is used for when set by must be one named and in each region to allow default only")
)

// New returns a provider with the given number of types.
func New(types int) *bare.Server {
	s := &bare.Server{Forget: true, Resources: make(map[string]*tfprotov6.Schema, types), Replace: []string{"zone"}, Config: &tfprotov6.Schema{Block: &tfprotov6.SchemaBlock{
		Attributes: []*tfprotov6.SchemaAttribute{
			{Name: "directory", Type: tftypes.String, Optional: true, Description: "The absolute path of the directory of the log."},
			{Name: "log_reads", Type: tftypes.Bool, Optional: true, Description: "Whether calls that only read are logged. Defaults to true."},
		},
	}}}
	for i := range types {
		s.Resources[typeName(i)] = resource(i)
	}
	return s
}

// typeName is unique, because it contains the number.
func typeName(i int) string {
	return fmt.Sprintf("wide_%s_%s_%d", areas[i%len(areas)], things[i/len(areas)%len(things)], i)
}

// resource generates a type, the same one each time for the same number.
func resource(i int) *tfprotov6.Schema {
	dice := rand.New(rand.NewPCG(uint64(i), 1))
	block := &tfprotov6.SchemaBlock{Description: sentence(dice), Attributes: []*tfprotov6.SchemaAttribute{
		{Name: "id", Type: tftypes.String, Computed: true, Description: sentence(dice)},
		{Name: "name", Type: tftypes.String, Required: true, Description: sentence(dice)},
		{Name: "revision", Type: tftypes.Number, Computed: true, Description: sentence(dice)},
		{Name: "zone", Type: tftypes.String, Optional: true, Description: sentence(dice)},
	}}
	for n := len(block.Attributes); n < attributes; n++ {
		block.Attributes = append(block.Attributes, attribute(dice, n))
	}
	sortAttributes(block.Attributes)
	for n := range blocks {
		nested := &tfprotov6.SchemaBlock{Description: sentence(dice)}
		for m := range 4 {
			a := attribute(dice, m)
			a.Computed = false // blocks of a set have no identity
			a.Optional = true
			nested.Attributes = append(nested.Attributes, a)
		}
		sortAttributes(nested.Attributes)
		nesting := []tfprotov6.SchemaNestedBlockNestingMode{tfprotov6.SchemaNestedBlockNestingModeList, tfprotov6.SchemaNestedBlockNestingModeSet, tfprotov6.SchemaNestedBlockNestingModeSingle}[n]
		block.BlockTypes = append(block.BlockTypes, &tfprotov6.SchemaNestedBlock{TypeName: fmt.Sprintf("block_%d", n), Nesting: nesting, Block: nested})
	}
	return &tfprotov6.Schema{Version: int64(dice.IntN(3)), Block: block}
}

func sortAttributes(all []*tfprotov6.SchemaAttribute) {
	slices.SortFunc(all, func(a, b *tfprotov6.SchemaAttribute) int { return strings.Compare(a.Name, b.Name) })
}

// attribute is optional, computed or both: a resource with just a name is valid.
func attribute(dice *rand.Rand, n int) *tfprotov6.SchemaAttribute {
	types := []tftypes.Type{
		tftypes.String, tftypes.String, tftypes.String, tftypes.Number, tftypes.Bool,
		tftypes.List{ElementType: tftypes.String}, tftypes.Set{ElementType: tftypes.String}, tftypes.Map{ElementType: tftypes.String},
		tftypes.List{ElementType: tftypes.Object{AttributeTypes: map[string]tftypes.Type{"key": tftypes.String, "value": tftypes.Number}}},
	}
	a := &tfprotov6.SchemaAttribute{
		Name: fmt.Sprintf("%s_%s_%d", words[dice.IntN(len(words))], words[dice.IntN(len(words))], n), Type: types[dice.IntN(len(types))], Description: sentence(dice),
	}
	switch dice.IntN(5) {
	case 0:
		a.Computed = true
	case 1:
		a.Computed, a.Optional = true, true
	default:
		a.Optional = true
		a.Sensitive = dice.IntN(20) == 0
	}
	return a
}

// sentence is as long as typical documentation of real providers.
func sentence(dice *rand.Rand) string {
	all := make([]string, 8+dice.IntN(12))
	for i := range all {
		all[i] = said[dice.IntN(len(said))]
	}
	return strings.Join(all, " ") + "."
}
