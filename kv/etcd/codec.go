package etcd

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec encodes etcd's messages with the code that gogo/protobuf generated for them,
// directly into a pooled buffer. gRPC's own codec would use reflection for these messages.
type codec struct{ pool mem.BufferPool }

type generated interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

func (codec) Name() string { return "proto" }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case generated:
		size := m.Size()
		if mem.IsBelowBufferPoolingThreshold(size) {
			data := make([]byte, size)
			if _, err := m.MarshalToSizedBuffer(data); err != nil {
				return nil, err
			}
			return mem.BufferSlice{mem.SliceBuffer(data)}, nil
		}
		data := c.pool.Get(size)
		if _, err := m.MarshalToSizedBuffer((*data)[:size]); err != nil {
			c.pool.Put(data)
			return nil, err
		}
		return mem.BufferSlice{mem.NewBuffer(data, c.pool)}, nil
	case proto.Message: // health checks
		data, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(data)}, err
	}
	return nil, fmt.Errorf("encode gRPC message: %T is not a protobuf message", v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	buf := data.MaterializeToBuffer(c.pool)
	// The generated code copies every field out of the buffer.
	defer buf.Free()
	switch m := v.(type) {
	case generated:
		return m.Unmarshal(buf.ReadOnlyData())
	case proto.Message:
		return proto.Unmarshal(buf.ReadOnlyData(), m)
	}
	return fmt.Errorf("decode gRPC message: %T is not a protobuf message", v)
}
