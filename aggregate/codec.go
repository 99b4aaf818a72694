package aggregate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apidiscoveryv2beta1 "k8s.io/api/apidiscovery/v2beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// codec reads and writes, in JSON and protobuf, the few kinds whose content the handler
// changes. All others pass through as bytes.
type codec struct {
	factory serializer.CodecFactory
}

func newCodec() *codec {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	utilruntime.Must(apidiscoveryv2.AddToScheme(scheme))
	utilruntime.Must(apidiscoveryv2beta1.AddToScheme(scheme))
	return &codec{serializer.NewCodecFactory(scheme)}
}

func (c *codec) serializer(mediaType string) (runtime.SerializerInfo, error) {
	info, ok := runtime.SerializerInfoForMediaType(c.factory.SupportedMediaTypes(), mediaType)
	if !ok || info.StreamSerializer == nil {
		return info, fmt.Errorf("cannot read or write %q", mediaType)
	}
	return info, nil
}

func (c *codec) decode(body []byte) (runtime.Object, error) {
	obj, gvk, err := c.factory.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(*gvk)
	return obj, nil
}

func (c *codec) encode(mediaType string, obj runtime.Object) ([]byte, error) {
	info, err := c.serializer(mediaType)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	if err := info.Serializer.Encode(obj, &body); err != nil {
		return nil, err
	}
	return body.Bytes(), nil
}

// writeEmptyList answers a list request with an empty list: as metadata, which a
// namespace controller asks for, or as an untyped List for older ones.
func (c *codec) writeEmptyList(w http.ResponseWriter, accept string) {
	mediaType, list := runtime.ContentTypeJSON, runtime.Object(nil)
	for _, wish := range parseAccept(accept) {
		known := wish.mediaType == runtime.ContentTypeJSON || wish.mediaType == runtime.ContentTypeProtobuf
		if known && wish.as == "PartialObjectMetadataList" && wish.version == "v1" {
			mediaType = wish.mediaType
			list = &metav1.PartialObjectMetadataList{
				TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
				Items:    []metav1.PartialObjectMetadata{},
			}
			break
		}
	}
	var body []byte
	var err error
	if list != nil {
		body, err = c.encode(mediaType, list)
	} else {
		body, err = json.Marshal(map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{}, "items": []any{}})
	}
	if err != nil {
		writeError(w, internalError("writing an empty list", err))
		return
	}
	w.Header().Set("Content-Type", mediaType)
	_, _ = w.Write(body) // the client is gone if this fails
}
