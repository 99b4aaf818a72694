// Package schema compares types as clusters serve them, and finds the type that all of them accept.
// It is pure: schemas in, schemas and reasons out.
//
// Its results are sound: each cluster whose type was included accepts and keeps whole every object
// that the negotiated schema accepts. If that cannot be decided, the type is refused, with the path
// and the reason. DESIGN.md specifies the guarantee, and the cases that are refused although they
// might be possible.
//
//	FromCRD, FromOpenAPI   a cluster's documents -> Types
//	Negotiate, Intersect   Types -> the Type that all accept, or refusals
//	Compare                the same for two schemas alone
//	CRD                    negotiated versions -> a CustomResourceDefinition
//	UnknownPaths           the fields of one object that a schema would drop
package schema

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Props is a schema as in a CRD.
type Props = apiextensionsv1.JSONSchemaProps

// A Type is one version of a type, as one cluster serves it or as all accept it.
type Type struct {
	Group, Version string
	Kind, Plural   string
	// Singular, ListKind, ShortNames and Categories appear in no object. The first cluster's names
	// are kept, and of the lists only the common entries.
	Singular, ListKind     string
	ShortNames, Categories []string
	Scope                  apiextensionsv1.ResourceScope
	// Status: .status is a subresource.
	Status bool
	// Scale has the fields of subresource scale; nil if there is none.
	Scale *apiextensionsv1.CustomResourceSubresourceScale
	// Schema is nil if the cluster does not publish one. Then nothing is known about the type.
	Schema *Props
	// Loose lists the places where Schema accepts more than the cluster does, because no CRD can
	// express the check: see FromOpenAPI. Such a type can be used with UnknownPaths. Intersect
	// refuses it.
	Loose []string
	// Columns are printed by kubectl. No object depends on them.
	Columns []apiextensionsv1.CustomResourceColumnDefinition
}

// A Refusal is the reason why the answer is no, or undecidable, at one place.
type Refusal struct {
	// Path is the place in the schema: .spec.list[*].name, .spec.map[*]; "." is the root. Outside
	// the schema, it names the field of Type.
	Path string `json:"path"`
	// Reason is in the form of a condition's reason, and Message explains it.
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
}

func (r Refusal) String() string { return fmt.Sprintf("%s: %s (%s)", r.Path, r.Message, r.Reason) }

// A Reason is one kind of refusal, in the form of a condition's reason.
type Reason string

const (
	// For the type around a schema.
	NamesDiffer        Reason = "NamesDiffer"
	ScopeDiffers       Reason = "ScopeDiffers"
	SubresourceDiffers Reason = "SubresourceDiffers"
	SchemaMissing      Reason = "SchemaMissing"

	// For two schemas.
	TypeDiffers          Reason = "TypeDiffers"
	NullableDiffers      Reason = "NullableDiffers"
	RequiredDiffers      Reason = "RequiredDiffers"
	PropertyUnknown      Reason = "PropertyUnknown"
	UnknownFieldsDiffer  Reason = "UnknownFieldsDiffer"
	DefaultDiffers       Reason = "DefaultDiffers"
	EnumDiffers          Reason = "EnumDiffers"
	BoundsDiffer         Reason = "BoundsDiffer"
	PatternDiffers       Reason = "PatternDiffers"
	FormatDiffers        Reason = "FormatDiffers"
	ListTypeDiffers      Reason = "ListTypeDiffers"
	EmbeddedDiffers      Reason = "EmbeddedDiffers"
	CombinationDiffers   Reason = "CombinationDiffers" // allOf, anyOf, oneOf, not
	RuleDiffers          Reason = "RuleDiffers"        // x-kubernetes-validations
	NothingLeft          Reason = "NothingLeft"        // no value would be accepted
	NotExpressible       Reason = "NotExpressible"     // sound, but no CRD can express it
	UnsupportedConstruct Reason = "UnsupportedConstruct"
)
