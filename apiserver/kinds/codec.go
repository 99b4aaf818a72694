package kinds

import (
	"fmt"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructuredscheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/versioning"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// kindSerializer reads and writes objects of a kind in JSON and YAML, like those of
// custom resources.
type kindSerializer struct {
	media     []runtime.SerializerInfo
	convertor kindConvertor
	decoder   kindDecoder
}

func newKindSerializer(params *runtime.Scheme, kind schema.GroupVersionKind, fields kindFields) kindSerializer {
	creater, typer := unstructuredscheme.NewUnstructuredCreator(), kindTyper{params}
	streaming := utilfeature.DefaultFeatureGate.Enabled(features.StreamingCollectionEncodingToJSON)
	text := func(o json.SerializerOptions) runtime.Serializer {
		return json.NewSerializerWithOptions(json.DefaultMetaFactory, creater, typer, o)
	}
	return kindSerializer{
		convertor: kindConvertor{kind: kind},
		decoder:   kindDecoder{kind: kind, fields: fields},
		media: []runtime.SerializerInfo{
			{
				MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
				Serializer:       text(json.SerializerOptions{StreamingCollectionsEncoding: streaming}),
				PrettySerializer: text(json.SerializerOptions{Pretty: true}),
				StrictSerializer: text(json.SerializerOptions{Strict: true, StreamingCollectionsEncoding: streaming}),
				StreamSerializer: &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: text(json.SerializerOptions{}), Framer: json.Framer},
			},
			{
				MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
				Serializer:       text(json.SerializerOptions{Yaml: true}),
				StrictSerializer: text(json.SerializerOptions{Yaml: true, Strict: true}),
			},
			{
				// Tables, metadata and errors are available in protobuf, but objects
				// are not.
				MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
				Serializer:       protobuf.NewSerializer(creater, typer),
				StreamSerializer: &runtime.StreamSerializerInfo{Serializer: protobuf.NewRawSerializer(creater, typer), Framer: protobuf.LengthDelimitedFramer},
			},
		},
	}
}

// standard returns the media types of the objects themselves.
func (s kindSerializer) standard() []runtime.SerializerInfo { return s.media[:2] }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s kindSerializer) SupportedMediaTypes() []runtime.SerializerInfo { return s.media }

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s kindSerializer) EncoderForVersion(encoder runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	scheme := apiextensionsapiserver.Scheme
	return versioning.NewCodec(encoder, nil, s.convertor, scheme, scheme, scheme, gv, nil, "kinds")
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s kindSerializer) DecoderToVersion(decoder runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	d := s.decoder
	d.decoder = decoder
	if text, ok := decoder.(*json.Serializer); ok {
		d.strict = text.IsStrict()
	}
	scheme := apiextensionsapiserver.Scheme
	return versioning.NewCodec(nil, d, runtime.UnsafeObjectConvertor(scheme), scheme, scheme, scheme, nil, gv, "kinds")
}

// kindDecoder decodes objects of a kind. It coerces the metadata and drops fields that
// the kind does not have. A strict decoder reports those.
type kindDecoder struct {
	decoder runtime.Decoder
	kind    schema.GroupVersionKind
	fields  kindFields
	strict  bool
}

// Decode implements runtime.Decoder.
func (d kindDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	object, gvk, err := d.decoder.Decode(data, defaults, into)
	var problems []error
	if strict, ok := runtime.AsStrictDecodingError(err); ok && object != nil {
		problems = strict.Errors()
	} else if err != nil {
		return nil, gvk, err
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, gvk, err
	}
	metadata, found, unknown, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: d.strict})
	if err != nil {
		return nil, gvk, err
	}
	if found {
		if err := objectmeta.SetObjectMeta(u.Object, metadata); err != nil {
			return nil, gvk, err
		}
	}
	if u.GroupVersionKind() == d.kind { // others, such as options, are decoded here too
		unknown = append(unknown, d.fields.prune(u.Object)...)
	}
	if !d.strict {
		return object, gvk, nil
	}
	for _, path := range unknown {
		problems = append(problems, fmt.Errorf("unknown field %q", path))
	}
	if len(problems) > 0 {
		return object, gvk, runtime.NewStrictDecodingError(problems)
	}
	return object, gvk, nil
}

// kindConvertor converts nothing: there is only one version.
type kindConvertor struct {
	kind  schema.GroupVersionKind
	names Names
}

// ConvertToVersion implements runtime.ObjectConvertor.
func (c kindConvertor) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from := in.GetObjectKind().GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok || from.GroupVersion() != c.kind.GroupVersion() || to.GroupVersion() != c.kind.GroupVersion() {
		return nil, fmt.Errorf("%s has only one version, and other kinds cannot be converted to it", c.kind)
	}
	return in, nil
}

// Convert implements runtime.ObjectConvertor.
func (c kindConvertor) Convert(in, out, _ any) error {
	from, ok := in.(*unstructured.Unstructured)
	to, alsoOK := out.(*unstructured.Unstructured)
	if !ok || !alsoOK || from.GroupVersionKind().GroupVersion() != c.kind.GroupVersion() {
		return fmt.Errorf("cannot convert %T to %T of %s", in, out, c.kind.GroupVersion())
	}
	to.SetUnstructuredContent(from.UnstructuredContent())
	return nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (c kindConvertor) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	if label == "metadata.name" || label == "metadata.namespace" && !c.names.ClusterScoped {
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// copyingConvertor is a convertor whose results the caller may change.
type copyingConvertor struct{ kindConvertor }

func (c copyingConvertor) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	return c.kindConvertor.ConvertToVersion(in.DeepCopyObject(), target)
}

func (c copyingConvertor) Convert(in, out, context any) error {
	if object, ok := in.(runtime.Object); ok {
		in = object.DeepCopyObject()
	}
	return c.kindConvertor.Convert(in, out, context)
}

// kindTyper takes the kind of an object from the object itself, and that of options
// from their Go types.
type kindTyper struct{ params *runtime.Scheme }

// ObjectKinds implements runtime.ObjectTyper.
func (t kindTyper) ObjectKinds(object runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if _, ok := object.(runtime.Unstructured); !ok {
		return t.params.ObjectKinds(object)
	}
	kind := object.GetObjectKind().GroupVersionKind()
	switch {
	case kind.Kind == "":
		return nil, false, runtime.NewMissingKindErr("object has no kind field")
	case kind.Version == "":
		return nil, false, runtime.NewMissingVersionErr("object has no apiVersion field")
	}
	return []schema.GroupVersionKind{kind}, false, nil
}

// Recognizes implements runtime.ObjectTyper.
func (t kindTyper) Recognizes(kind schema.GroupVersionKind) bool { return t.params.Recognizes(kind) }
