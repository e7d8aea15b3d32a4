package rpc

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// method finds the descriptor of a procedure, such as /acme.v1.Payments/Pay, and nil if the program has none.
func method(procedure string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(procedure, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	m, _ := found.(protoreflect.MethodDescriptor)
	return m
}

// marked reports whether a method has an option idempotency_level of NO_SIDE_EFFECTS, or one that says that repeats are
// harmless, which is IDEMPOTENT too.
func marked(procedure string) (safe, harmless bool) {
	m := method(procedure)
	if m == nil {
		return false, false
	}
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	level := options.GetIdempotencyLevel()
	safe = level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	return safe, safe || level == descriptorpb.MethodOptions_IDEMPOTENT
}

// NoSideEffects reports whether a procedure is marked so in its descriptor.
func NoSideEffects(procedure string) bool {
	safe, _ := marked(procedure)
	return safe
}

// keyFields finds the field of each method's request that an option of the method names. The path has dots between
// nested fields.
func keyFields(option protoreflect.ExtensionType) (fields map[string]string, err error) {
	if option == nil {
		return nil, nil
	}
	d := option.TypeDescriptor()
	if d.ContainingMessage().FullName() != "google.protobuf.MethodOptions" || d.Kind() != protoreflect.StringKind ||
		d.Cardinality() == protoreflect.Repeated {
		return nil, fmt.Errorf("Config.KeyField is %s, want an option of methods that is a string", d.FullName())
	}
	fields = map[string]string{}
	protoregistry.GlobalFiles.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				m := service.Methods().Get(j)
				path, _ := proto.GetExtension(m.Options(), option).(string)
				if path == "" {
					continue
				}
				if !hasField(m.Input(), path) {
					err = fmt.Errorf("method %s has its key in the field %s, which is no string of %s",
						m.FullName(), path, m.Input().FullName())
					return false
				}
				fields["/"+string(service.FullName())+"/"+string(m.Name())] = path
			}
		}
		return true
	})
	return fields, err
}

// hasField reports whether a path leads to a string.
func hasField(in protoreflect.MessageDescriptor, path string) bool {
	first, rest, nested := strings.Cut(path, ".")
	field := in.Fields().ByName(protoreflect.Name(first))
	switch {
	case field == nil || field.Cardinality() == protoreflect.Repeated:
		return false
	case nested:
		return field.Message() != nil && hasField(field.Message(), rest)
	}
	return field.Kind() == protoreflect.StringKind
}

// fieldValue is the string that a path leads to, and "" if it is not set.
func fieldValue(in protoreflect.Message, path string) string {
	first, rest, nested := strings.Cut(path, ".")
	field := in.Descriptor().Fields().ByName(protoreflect.Name(first))
	switch {
	case field == nil:
		return ""
	case nested:
		return fieldValue(in.Get(field).Message(), rest)
	}
	return in.Get(field).String()
}
