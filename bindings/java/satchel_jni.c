/* satchel_jni.c: the native methods of satchel.Model. Handles are pointers in a long; texts are bytes of UTF-8, because JNI's own
 * strings are of another encoding. An error becomes a satchel.SatchelException. */
#include <jni.h>
#include <stdlib.h>

#include "satchel.h"

static void fail(JNIEnv *env, int32_t code, const char *text) {
    jclass kind = (*env)->FindClass(env, "satchel/SatchelException");
    jmethodID init = kind ? (*env)->GetMethodID(env, kind, "<init>", "(ILjava/lang/String;)V") : NULL;
    jstring words = init ? (*env)->NewStringUTF(env, text) : NULL;
    jobject made = words ? (*env)->NewObject(env, kind, init, (jint)code, words) : NULL;
    if (made)
        (*env)->Throw(env, made);
}

JNIEXPORT jlong JNICALL Java_satchel_Model_open(JNIEnv *env, jclass self, jbyteArray path, jint context, jint slots,
                                                jint threads, jint engine, jbyteArray worker) {
    satchel_model_options options;
    satchel_model *model = NULL;
    jbyte *name = (*env)->GetByteArrayElements(env, path, NULL);
    jbyte *program = name ? (*env)->GetByteArrayElements(env, worker, NULL) : NULL;
    int32_t code;
    (void)self;
    if (program) {
        satchel_model_options_init(&options, sizeof options);
        options.context = context;
        options.slots = slots;
        options.threads = threads;
        options.engine = engine;
        options.worker = (const char *)program;
        if ((code = satchel_open((const char *)name, &options, &model)) < 0)
            fail(env, code, satchel_error());
        (*env)->ReleaseByteArrayElements(env, worker, program, JNI_ABORT);
    }
    if (name)
        (*env)->ReleaseByteArrayElements(env, path, name, JNI_ABORT);
    return (jlong)(intptr_t)model;
}

JNIEXPORT void JNICALL Java_satchel_Model_close(JNIEnv *env, jclass self, jlong model) {
    (void)env, (void)self;
    satchel_close((satchel_model *)(intptr_t)model);
}

/* Begins an answer to a conversation as JSON. */
static int32_t begin_chat(satchel_model *model, const char *request, int64_t length, const satchel_generate_options *o,
                          satchel_reply **reply) {
    satchel_chat_prompt *prompt = NULL;
    int64_t count;
    int32_t code = satchel_chat_render(model, request, length, &prompt);
    if (code >= 0) {
        const int32_t *ids = satchel_chat_prompt_ids(prompt, &count);
        code = satchel_generate(model, ids, count, o, reply);
    }
    satchel_chat_prompt_free(prompt);
    return code;
}

/* Of a text, or of a conversation as JSON. */
JNIEXPORT jlong JNICALL Java_satchel_Model_begin(JNIEnv *env, jclass self, jlong handle, jbyteArray text, jboolean chat,
                                                 jfloat temperature, jlong max_tokens, jlong seed) {
    satchel_model *model = (satchel_model *)(intptr_t)handle;
    satchel_generate_options options;
    satchel_reply *reply = NULL;
    jbyte *raw = (*env)->GetByteArrayElements(env, text, NULL);
    int32_t code;
    (void)self;
    if (!raw)
        return 0;
    satchel_generate_options_init(&options, sizeof options);
    options.temperature = temperature;
    options.max_tokens = max_tokens;
    options.seed = seed;
    code =
        chat ? begin_chat(model, (const char *)raw, (*env)->GetArrayLength(env, text), &options, &reply)
             : satchel_generate_text(model, (const char *)raw, (*env)->GetArrayLength(env, text), 0, &options, &reply);
    if (code < 0)
        fail(env, code, satchel_error());
    (*env)->ReleaseByteArrayElements(env, text, raw, JNI_ABORT);
    return (jlong)(intptr_t)reply;
}

/* The bytes of the next piece; NULL where the answer is over. */
JNIEXPORT jbyteArray JNICALL Java_satchel_Model_next(JNIEnv *env, jclass self, jlong reply) {
    satchel_piece piece = {.size = sizeof piece};
    int32_t code = satchel_reply_next((satchel_reply *)(intptr_t)reply, &piece);
    jbyteArray bytes;
    (void)self;
    if (code < 0)
        fail(env, code, satchel_error());
    if (code <= 0 || !(bytes = (*env)->NewByteArray(env, (jsize)piece.length)))
        return NULL;
    (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)piece.length, (const jbyte *)piece.text);
    return bytes;
}

JNIEXPORT void JNICALL Java_satchel_Model_free(JNIEnv *env, jclass self, jlong reply) {
    (void)env, (void)self;
    satchel_reply_free((satchel_reply *)(intptr_t)reply);
}
