package rpctest

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Procedures of the service that the tests call. Requests and responses are google.protobuf.StringValue, so that no
// code is generated.
const (
	Service = "rpctest.Payments"
	Pay     = "/" + Service + "/Pay"
	Refund  = "/" + Service + "/Refund"
	Put     = "/" + Service + "/Put"   // IDEMPOTENT
	Look    = "/" + Service + "/Look"  // NO_SIDE_EFFECTS
	Order   = "/" + Service + "/Order" // its key is its request's value
	Watch   = "/" + Service + "/Watch" // a stream
)

// KeyField is the option of methods that names the field of a key.
var KeyField = register()

// newOption makes and registers an option of a method, which is a string.
func newOption(name string, number int32, label descriptorpb.FieldDescriptorProto_Label, of string,
) protoreflect.ExtensionType {
	file := newFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("rpctest/" + name + ".proto"), Package: proto.String("rpctest"),
		Dependency: []string{"google/protobuf/descriptor.proto"},
		Extension: []*descriptorpb.FieldDescriptorProto{{
			Name: &name, Number: &number, Extendee: proto.String(".google.protobuf." + of),
			Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: &label,
		}},
	})
	extension := dynamicpb.NewExtensionType(file.Extensions().Get(0))
	must(protoregistry.GlobalTypes.RegisterExtension(extension))
	return extension
}

// newFile registers a file as generated code does.
func newFile(d *descriptorpb.FileDescriptorProto) protoreflect.FileDescriptor {
	file, err := protodesc.NewFile(d, protoregistry.GlobalFiles)
	must(err)
	must(protoregistry.GlobalFiles.RegisterFile(file))
	return file
}

// newService registers a service whose methods take and give strings.
func newService(name string, methods ...*descriptorpb.MethodDescriptorProto) {
	for _, m := range methods {
		m.InputType = proto.String(".google.protobuf.StringValue")
		m.OutputType = proto.String(".google.protobuf.StringValue")
	}
	newFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("rpctest/" + name + ".service.proto"), Package: proto.String("rpctest"),
		Dependency: []string{"google/protobuf/wrappers.proto"},
		Service:    []*descriptorpb.ServiceDescriptorProto{{Name: &name, Method: methods}},
	})
}

func newMethod(name string, o *descriptorpb.MethodOptions) *descriptorpb.MethodDescriptorProto {
	return &descriptorpb.MethodDescriptorProto{Name: &name, Options: o}
}

// register makes the descriptors that protoc would.
func register() protoreflect.ExtensionType {
	extension := newOption("key_field", 50001, descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, "MethodOptions")
	named := &descriptorpb.MethodOptions{}
	proto.SetExtension(named, extension, "value")
	level := func(l descriptorpb.MethodOptions_IdempotencyLevel) *descriptorpb.MethodOptions {
		return &descriptorpb.MethodOptions{IdempotencyLevel: &l}
	}
	watch := newMethod("Watch", nil)
	watch.ServerStreaming = proto.Bool(true)
	newService("Payments", newMethod("Pay", nil), newMethod("Refund", nil), newMethod("Order", named), watch,
		newMethod("Put", level(descriptorpb.MethodOptions_IDEMPOTENT)),
		newMethod("Look", level(descriptorpb.MethodOptions_NO_SIDE_EFFECTS)))
	return extension
}

// Options that New must refuse: they are no string, or none of methods, or name no field.
var (
	repeated = newOption("repeated", 50002, descriptorpb.FieldDescriptorProto_LABEL_REPEATED, "MethodOptions")
	ofFields = newOption("of_fields", 50003, descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, "FieldOptions")
	mistaken = registerMistaken()
)

func registerMistaken() protoreflect.ExtensionType {
	extension := newOption("mistaken", 50004, descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL, "MethodOptions")
	named := &descriptorpb.MethodOptions{}
	proto.SetExtension(named, extension, "value.no")
	newService("Mistaken", newMethod("Order", named))
	return extension
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
