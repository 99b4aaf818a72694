// Package schema compares types as clusters serve them, and finds the type
// that all of them can take. It is pure: schemas in, schemas and reasons out.
//
// Sound means: an object that the negotiated schema accepts is accepted, and
// kept whole, by each cluster whose type went into it. What cannot be decided
// is refused, with the path and the reason. DESIGN.md says exactly what is
// promised, and what is refused though it might have been possible.
//
//	FromCRD, FromOpenAPI   a cluster's documents -> Types
//	Negotiate, Intersect   Types -> the Type that all accept, or refusals
//	Compare                the same for two schemas alone
//	CRD                    negotiated versions -> what the API server takes
//	Unknown                the fields of one object that a schema would drop
package schema

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Props is a schema as a CRD holds it.
type Props = apiextensionsv1.JSONSchemaProps

// A Type is one version of a type as one cluster serves it, or as all can.
type Type struct {
	Group, Version string
	Kind, Plural   string
	// Singular, ListKind, ShortNames and Categories appear in no object: the
	// first cluster's are kept (the lists: what all have).
	Singular, ListKind     string
	ShortNames, Categories []string
	Scope                  apiextensionsv1.ResourceScope
	// Status tells whether .status has an endpoint of its own.
	Status bool
	// Scale names the fields behind /scale; nil if there is no such endpoint.
	Scale *apiextensionsv1.CustomResourceSubresourceScale
	// Schema is nil where the cluster tells none; nothing can be said then.
	Schema *Props
	// Loose are the places where Schema lets more through than the cluster
	// does, because no CRD can say what it checks there: FromOpenAPI. Such a
	// type is good for Unknown, and Intersect refuses it.
	Loose []string
	// Columns are what kubectl shows. No object depends on them.
	Columns []apiextensionsv1.CustomResourceColumnDefinition
}

// A Refusal says why no answer, or the answer no, was given at one place.
type Refusal struct {
	// Path is where in the schema: .spec.list[*].name, .spec.map[*]; "." is
	// the root. For what is not in the schema it names the field of Type.
	Path string `json:"path"`
	// Reason is for programs, Message for people.
	Reason  Reason `json:"reason"`
	Message string `json:"message"`
}

func (r Refusal) String() string { return fmt.Sprintf("%s: %s (%s)", r.Path, r.Message, r.Reason) }

// A Reason is one kind of refusal, in the form of a condition's reason.
type Reason string

const (
	// Of the Type around a schema.
	NamesDiffer        Reason = "NamesDiffer"
	ScopeDiffers       Reason = "ScopeDiffers"
	SubresourceDiffers Reason = "SubresourceDiffers"
	SchemaMissing      Reason = "SchemaMissing"

	// Of two schemas.
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
	NotExpressible       Reason = "NotExpressible"     // sound, but no CRD can say it
	UnsupportedConstruct Reason = "UnsupportedConstruct"
)
