// Runs a model file that `satchel build` made, by the C library libsatchel. It is C# 6 and .NET Standard 1.3, so Mono, Unity and .NET
// take it. Handles are SafeHandles: a reply keeps its model open, whatever is disposed or collected first.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

namespace Satchel {

/// <summary>A call that failed: a code SATCHEL_E_... of satchel.h, and the library's words.</summary>
public sealed class SatchelException : Exception {
    public int Code { get; }
    internal SatchelException(long code, string text) : base(text) { Code = (int)code; }
}

/// <summary>What computes: the library, a worker process, or that for files without a plan.</summary>
public enum Engine { Library = 0, Worker = 1, Either = 2 }

/// <summary>Options of a model; 0: as the file or the machine says.</summary>
[StructLayout(LayoutKind.Sequential)]
public struct ModelOptions {
    internal uint size;
    public int Context, Slots, Threads, ThreadsDecode;
    public Engine Engine;
    internal IntPtr worker;
}

/// <summary>A part of a conversation. Role: system, user or assistant.</summary>
public sealed class Message {
    public readonly string Role, Content;
    public Message(string role, string content) { Role = role; Content = content; }

    /// <summary>A conversation as JSON.</summary>
    internal static string Request(IEnumerable<Message> messages) {
        var text = new StringBuilder("{\"messages\": [");
        foreach (Message one in messages) {
            text.Append(text[text.Length - 1] == '[' ? "{\"role\": " : ", {\"role\": ");
            Quote(one.Role, text);
            text.Append(", \"content\": ");
            Quote(one.Content, text);
            text.Append('}');
        }
        return text.Append("]}").ToString();
    }

    static void Quote(string raw, StringBuilder to) {
        to.Append('"');
        foreach (char c in raw) {
            if (c == '"' || c == '\\')
                to.Append('\\').Append(c);
            else if (c < ' ')
                to.Append("\\u").Append(((int)c).ToString("x4"));
            else
                to.Append(c);
        }
        to.Append('"');
    }
}

/// <summary>Options of an answer, with the names and units of satchel.h. GenerateOptions.Default has the library's values.</summary>
[StructLayout(LayoutKind.Sequential)]
public struct GenerateOptions {
    internal uint size;
    public uint Flags;
    public long Seed, MaxTokens;
    public float Temperature;
    public int TopK;
    public float TopP, MinP, TypicalP, TopNSigma, XtcProbability, XtcThreshold, DynatempRange, DynatempExponent;
    public float RepeatPenalty, PresencePenalty, FrequencyPenalty;
    public int RepeatLastN, Mirostat;
    public float MirostatTau;
    internal IntPtr samplers;

    public static GenerateOptions Default {
        get {
            var options = new GenerateOptions();
            Native.satchel_generate_options_init(ref options, (uint)Marshal.SizeOf<GenerateOptions>());
            return options;
        }
    }
}

[StructLayout(LayoutKind.Sequential)]
struct NativePiece {
    internal uint size;
    internal int token;
    internal IntPtr text;
    internal long length;
}

static class Native {
    const string Library = "satchel";
    const CallingConvention Call = CallingConvention.Cdecl;
    [DllImport(Library, CallingConvention = Call)] internal static extern IntPtr satchel_error();
    [DllImport(Library, CallingConvention = Call)]
    internal static extern int satchel_open(byte[] path, ref ModelOptions options, out IntPtr model);
    [DllImport(Library, CallingConvention = Call)] internal static extern void satchel_close(IntPtr model);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern void satchel_generate_options_init(ref GenerateOptions options, uint size);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern int satchel_generate_text(ModelHandle model, byte[] text, long length, uint flags,
                                                     ref GenerateOptions options, out IntPtr reply);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern int satchel_chat_render(ModelHandle model, byte[] request, long length, out IntPtr prompt);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern IntPtr satchel_chat_prompt_ids(IntPtr prompt, out long count);
    [DllImport(Library, CallingConvention = Call)] internal static extern void satchel_chat_prompt_free(IntPtr prompt);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern int satchel_generate(ModelHandle model, IntPtr ids, long count, ref GenerateOptions options,
                                                out IntPtr reply);
    [DllImport(Library, CallingConvention = Call)]
    internal static extern int satchel_reply_next(ReplyHandle reply, ref NativePiece piece);
    [DllImport(Library, CallingConvention = Call)] internal static extern void satchel_reply_free(IntPtr reply);

    internal static long Checked(long code) {
        if (code < 0)
            throw new SatchelException(code, Marshal.PtrToStringAnsi(satchel_error()));
        return code;
    }
}

sealed class ModelHandle : SafeHandle {
    internal ModelHandle(IntPtr model) : base(IntPtr.Zero, true) { SetHandle(model); }
    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }
    protected override bool ReleaseHandle() {
        Native.satchel_close(handle);
        return true;
    }
}

sealed class ReplyHandle : SafeHandle {
    readonly ModelHandle model;
    internal ReplyHandle(IntPtr reply, ModelHandle model) : base(IntPtr.Zero, true) {
        bool added = false;
        model.DangerousAddRef(ref added); // the model stays open until the reply is freed
        this.model = model;
        SetHandle(reply);
    }
    public override bool IsInvalid { get { return handle == IntPtr.Zero; } }
    protected override bool ReleaseHandle() {
        Native.satchel_reply_free(handle);
        model.DangerousRelease();
        return true;
    }
}

/// <summary>An open model.</summary>
public sealed class Model : IDisposable {
    readonly ModelHandle handle;

    /// <summary>worker: the program of a worker process, a path or a name in PATH; null: satchel.</summary>
    public Model(string path, ModelOptions options = default(ModelOptions), string worker = null) {
        IntPtr model;
        GCHandle held = GCHandle.Alloc(Encoding.UTF8.GetBytes((worker ?? "satchel") + "\0"), GCHandleType.Pinned);
        options.size = (uint)Marshal.SizeOf<ModelOptions>();
        options.worker = held.AddrOfPinnedObject();
        try {
            Native.Checked(Native.satchel_open(Encoding.UTF8.GetBytes(path + "\0"), ref options, out model));
        } finally {
            held.Free();
        }
        handle = new ModelHandle(model);
    }

    /// <summary>Answers a text, piece by piece, each of whole characters. Leaving the loop ends the answer.</summary>
    public IEnumerable<string> Generate(string text) { return Generate(text, GenerateOptions.Default); }

    public IEnumerable<string> Generate(string text, GenerateOptions options) {
        byte[] raw = Encoding.UTF8.GetBytes(text);
        IntPtr begun;
        Native.Checked(Native.satchel_generate_text(handle, raw, raw.Length, 0, ref options, out begun));
        return Read(begun);
    }

    /// <summary>Answers a conversation in the same way.</summary>
    public IEnumerable<string> Chat(IEnumerable<Message> messages, GenerateOptions options) {
        byte[] raw = Encoding.UTF8.GetBytes(Message.Request(messages));
        IntPtr prompt, begun;
        long count;
        Native.Checked(Native.satchel_chat_render(handle, raw, raw.Length, out prompt));
        try {
            IntPtr ids = Native.satchel_chat_prompt_ids(prompt, out count);
            Native.Checked(Native.satchel_generate(handle, ids, count, ref options, out begun));
        } finally {
            Native.satchel_chat_prompt_free(prompt);
        }
        return Read(begun);
    }

    IEnumerable<string> Read(IntPtr begun) {
        using (var reply = new ReplyHandle(begun, handle)) {
            var piece = new NativePiece { size = (uint)Marshal.SizeOf<NativePiece>() };
            while (Native.Checked(Native.satchel_reply_next(reply, ref piece)) > 0) {
                var bytes = new byte[piece.length];
                Marshal.Copy(piece.text, bytes, 0, bytes.Length);
                yield return Encoding.UTF8.GetString(bytes);
            }
        }
    }

    public void Dispose() { handle.Dispose(); }
}

}
