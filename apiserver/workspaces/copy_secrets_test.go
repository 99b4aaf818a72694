package workspaces

import (
	"bytes"
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// rotatedKeys encrypt by a prefix: "former:" is decrypted too.
type rotatedKeys struct{}

func (rotatedKeys) TransformFromStorage(_ context.Context, stored []byte, _ value.Context) ([]byte, bool, error) {
	under, plain, _ := bytes.Cut(stored, []byte(":"))
	return plain, string(under) == "former", nil
}

func (rotatedKeys) TransformToStorage(_ context.Context, plain []byte, _ value.Context) ([]byte, error) {
	return append([]byte("present:"), plain...), nil
}

// TestCopyNeedsNoFormerKey: a Secret that is encrypted with a former key has the present one in a copy.
func TestCopyNeedsNoFormerKey(t *testing.T) {
	codec := legacyscheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion)
	plain, err := runtime.Encode(codec, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"word": []byte("sesame")}})
	if err != nil {
		t.Fatal(err)
	}
	copied := copiedTokens{codec: codec, transformer: rotatedKeys{}}
	for _, under := range []string{"former:", "present:"} {
		got, err := copied.replace(t.Context(), "/registry/secrets/default/s", append([]byte(under), plain...))
		if err != nil || string(got) != "present:"+string(plain) {
			t.Errorf("%s: %q, %v", under, got, err)
		}
	}
}
